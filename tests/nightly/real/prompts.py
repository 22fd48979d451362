"""Short questions: facts, lists, code, arithmetic, several languages and scripts."""

PROMPTS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "What is 12 times 8?",
    "Translate 'good morning' into Spanish.",
    "Give me a recipe for pancakes as a numbered list.",
    "Was ist die Hauptstadt von Deutschland?",
    "Quelle est la couleur du ciel ?",
    "¿Cuántos días tiene una semana?",
    "日本の首都はどこですか？",  # noqa: RUF001
    "中国的首都是哪里？",  # noqa: RUF001
    "Какая столица России?",
    "ما هي عاصمة مصر؟",
    "भारत की राजधानी क्या है?",
    "Repeat after me: 🙂🚀🌍",
    "Fix this code: `for i in range(10) print(i)`",
    "Write a bash command that counts the lines of a file.",
    "Summarize: The cat sat on the mat. It was warm. It slept all day.",
    "Continue: 2, 4, 8, 16,",
    "Write a JSON object with a name and an age.",
    "Write a regular expression for an e-mail address.",
    "Make a table with two columns: fruit and colour.",
    "How do I boil an egg?\n\nAnswer in steps.",
    "Complete the sentence: The quick brown fox",
    "    def f(x):\n        return x *",
    "Say 'hello' in five languages.",
)
