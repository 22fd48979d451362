/* Choices of the form, kept in the browser for each served model; never the prompt, nor the key. */

const FIELDS = [
  ...["mode", "preset", "draft_length", "window", "threshold", "tail", "sub_drafter"],
  ...["temperature", "top_p", "seed", "max_tokens", "send_as"],
];

/** The choices that a form shows, by the names of its fields. */
export function choicesOf(form) {
  return Object.fromEntries(FIELDS.map((name) => [name, valueOf(form.elements[name])]));
}

/** Shows choices in a form; values that a field does not have are left out. */
export function show(form, choices) {
  for (const name of FIELDS) {
    const field = form.elements[name];
    const value = choices[name];
    if (typeof value !== typeof valueOf(field)) continue;
    if (field.type === "checkbox") field.checked = value;
    else if (!field.options || [...field.options].some((each) => each.value === value && !each.disabled)) field.value = value;
  }
}

/** The choices that were kept for a model. */
export function recalled(model) {
  try {
    return JSON.parse(localStorage.getItem(keyOf(model))) ?? {};
  } catch {
    return {}; // storage may be forbidden, or hold something else
  }
}

/** Keeps the choices that differ from the defaults. */
export function keep(model, choices, defaults) {
  const changed = Object.entries(choices).filter(([name, value]) => value !== defaults[name]);
  try {
    if (changed.length) localStorage.setItem(keyOf(model), JSON.stringify(Object.fromEntries(changed)));
    else localStorage.removeItem(keyOf(model));
  } catch {
    // Without storage they last as long as the page.
  }
}

function keyOf(model) {
  return `flyserve.choices.${model}`;
}

function valueOf(field) {
  return field.type === "checkbox" ? field.checked : field.value;
}
