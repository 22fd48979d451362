"""Twenty beginnings of texts for a model without a chat template: prose, lists, code, languages, scripts."""

BEGINNINGS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "The three primary colours are red,",
    "Water boils at 100 degrees Celsius because",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "import json\n\nwith open('data.json') as file:\n    ",
    "SELECT name, age FROM users WHERE",
    "# Shopping list\n\n- milk\n- eggs\n-",
    "1, 2, 3, 5, 8, 13,",
    "Monday, Tuesday, Wednesday,",
    "Dear Ms. Keller,\n\nthank you for your letter of 3 May. We",
    "The museum opened in 1921. It shows 340 paintings and twelve sculptures. In the first room",
    "Q: What is the largest planet of the solar system?\nA:",
    "Ingredients:  2 cups of flour,  1 egg,  250 ml of milk\n\nSteps:\n1.",
    "Die Hauptstadt von Deutschland ist",
    "La Révolution française a commencé en",
    "日本の首都は",
    "Москва является столицей",
    "I love pizza 🍕 and burgers 🍔 and",
    '{"name": "Alice", "age": 30, "hobbies": [',
)
