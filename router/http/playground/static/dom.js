/* Elements from text: nothing that a model says is ever taken for markup. */

/** An element with properties and children; strings become text nodes. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  assign(made, properties);
  made.append(...children);
  return made;
}

/** The same in SVG, where everything is an attribute. */
export function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Says whether a button does something now; it keeps the focus either way. */
export function enable(button, isEnabled) {
  button.setAttribute("aria-disabled", String(!isEnabled));
}

function assign(made, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
}
