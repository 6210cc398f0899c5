// Server-sent events out of an answer's body, as they come.

// Yields the data of each event as text. Comments, which only say that somebody is there, go to
// `onBeat`.
export async function* events(body, onBeat = () => {}) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let left = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (left + decoder.decode(value, { stream: !done })).split(/\r\n|\n|\r/);
      left = done ? "" : lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith(":")) onBeat();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (done) return;
    }
  } finally {
    reader.releaseLock();
  }
}
