"""Streams of SmolLM2: whole characters, long conversations, many clients at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from flyserve import Client
from tests.nightly.real.prompts import PROMPTS
from tests.nightly.real.real_rig import MODEL_NAME, Reference, chat, served_ids

pytestmark = pytest.mark.timeout(3600)

REPETITIVE = {
    "emoji": "😀🚀🌍🎉😀🚀🌍🎉😀🚀🌍🎉😀🚀🌍",
    "families": "👩‍👩‍👧‍👦👨‍👩‍👧👩‍👩‍👧‍👦👨‍👩‍👧👩‍👩‍👧‍👦👨‍👩‍👧👩‍👩‍👧‍👦",
    "Chinese": "一二三四五六七八九十一二三四五六七八九十一二三四五六七八九十一二三",
    "Japanese": "こんにちは。ありがとう。こんにちは。ありがとう。こんにちは。",
    "Arabic": "السلام عليكم السلام عليكم السلام عليكم السلام",
    "Hindi": "नमस्ते दुनिया नमस्ते दुनिया नमस्ते दुनिया नमस्ते",
    "Russian": "Привет, мир! Привет, мир! Привет, мир! Привет",
}
"""Texts that the model continues in their own script."""
LONG_TOKENS = 6000
CLIENTS = 16


@pytest.mark.parametrize("script", REPETITIVE)
def test_text_of_any_script_streams_whole(
    client: Client, http: OpenAI, reference: Reference, script: str
) -> None:
    prompt = REPETITIVE[script]
    with client.stream(prompt, 40) as stream:
        pieces = [chunk.text for chunk in stream]
        ids = [token.id for token in stream.response.tokens]
    whole = reference.text(ids)
    assert any(ord(character) > 0x3FF for character in whole), whole
    # The limit of tokens may cut the last character; only the last piece may show that.
    assert not any("\ufffd" in piece for piece in pieces[:-1]), pieces
    assert "".join(pieces) == whole
    streamed = http.completions.create(
        model=MODEL_NAME, prompt=prompt, max_tokens=40, temperature=0, stream=True
    )
    texts = [chunk.choices[0].text for chunk in streamed if chunk.choices]
    assert "".join(texts) == whole


def test_a_conversation_of_6000_tokens_continues(client: Client, reference: Reference) -> None:
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    while len(reference.chat_ids(messages)) < LONG_TOKENS:
        number = len(messages)
        question, answer = PROMPTS[number % len(PROMPTS)], f"This is answer {number}. It is a long story."
        messages += [*chat(f"Question {number}: {question}"), {"role": "assistant", "content": answer * 5}]
    for question in ("What is the capital of France?", "And of Germany?"):
        messages += chat(question)
        prompt = reference.chat_ids(messages)
        assert len(prompt) > LONG_TOKENS and served_ids(client, messages) == prompt
        response = client.generate(prompt, 24, timeout_s=1200)
        ids = [token.id for token in response.tokens]
        reference.assert_same([prompt], [reference.generate(prompt, 24)], [ids])
        messages.append({"role": "assistant", "content": response.text})


def test_sixteen_clients_at_once_each_receive_what_they_receive_alone(
    client: Client, reference: Reference
) -> None:
    prompts = [served_ids(client, chat(question)) for question in PROMPTS[-CLIENTS:]]

    def answer(prompt: list[int]) -> list[int]:
        return [token.id for token in client.generate(prompt, 32).tokens]

    alone = [answer(prompt) for prompt in prompts]
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(answer, prompts))
    reference.assert_same(prompts, alone, together)
