// A colour for each person who is there: by their id, moved on where somebody has it already.

const NUM_HUES = 12;
const NUM_PATTERNS = 5;
const NUM_SLOTS = NUM_HUES * NUM_PATTERNS;
const slots = new Map();
const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });

function hash(text) {
  let value = 2166136261;
  for (const char of text) value = Math.imul(value ^ char.codePointAt(0), 16777619) >>> 0;
  return value;
}

// Those who are shown now; who has gone gives their colour back.
export function present(personIds) {
  const here = new Set(personIds);
  for (const id of slots.keys()) if (!here.has(id)) slots.delete(id);
  for (const id of here) slotOf(id);
}

function slotOf(personId) {
  const known = slots.get(personId);
  if (known !== undefined) return known;
  const taken = new Set(slots.values());
  const wanted = hash(personId) % NUM_HUES;
  for (let number = 0; number < NUM_SLOTS; number += 1) {
    const slot = (wanted + number) % NUM_HUES + NUM_HUES * Math.floor(number / NUM_HUES);
    if (!taken.has(slot)) {
      slots.set(personId, slot);
      return slot;
    }
  }
  const shared = hash(personId) % NUM_SLOTS;
  slots.set(personId, shared);
  return shared;
}

export function colourClass(personId) {
  const slot = slotOf(personId);
  return `p h${slot % NUM_HUES} t${Math.floor(slot / NUM_HUES)}`;
}

export function initials(name) {
  const words = name.trim().split(/\s+/).filter(Boolean);
  if (!words.length) return "?";
  const first = letters(words[0]);
  const picked = words.length > 1 ? [first[0], letters(words.at(-1))[0]] : first.slice(0, 2);
  return picked.join("").toUpperCase();
}

const letters = (word) => Array.from(graphemes.segment(word), (part) => part.segment);
