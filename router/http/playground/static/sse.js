/* Server-sent events out of a stream of text, however it is cut. */

const EVENT_END = /\r\n\r\n|\n\n|\r\r/;
const LINE_END = /\r\n|\n|\r/;

/** A parser that takes pieces of text and returns the data of every event that they complete. */
export function createEventParser() {
  let rest = "";
  return {
    push(text) {
      const events = (rest + text).split(EVENT_END);
      rest = events.pop();
      return events.map(dataOf).filter((data) => data !== null);
    },
  };
}

function dataOf(event) {
  const lines = event.split(LINE_END).filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") : null;
}

/** The data of a response's events, as they come. */
export async function* eventsOf(response) {
  const parser = createEventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
