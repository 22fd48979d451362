/* The form: what it says, what the deployment's defaults are, and which field is to blame. */

import { choicesOf, keep, recalled, show } from "./choices.js";
import { byId, element } from "./dom.js";
import { examplesFor } from "./examples.js";
import { Failure } from "./failure.js";
import { NATS } from "./run.js";

const NUMBERS = ["draft_length", "window", "threshold", "temperature", "top_p", "seed", "max_tokens"];
const MODE_HELP = {
  plain: "One token at a time, without drafts.",
  exact: "Drafts, of which only the target’s own tokens are kept: the same text as plain.",
  fly: "Drafts, and a mismatch is kept where the target is unsure and agrees with what follows.",
};
const DEFAULT = "";
const FAULT = "error";
const SHARE = "a share of ln |V|";
const NARROW = "(max-width: 62rem)";

/** The form and what the deployment says of its fields. */
export class Controls {
  constructor() {
    this.form = byId("controls");
    this.deployment = null;
    this.blamed = null;
    this.form.addEventListener("input", () => this.#changed());
    this.form.addEventListener("reset", (event) => this.#reset(event));
    if (matchMedia(NARROW).matches) for (const group of this.form.querySelectorAll("details")) group.open = false;
    this.#announce();
  }

  /** Shows what suits a model: examples, the deployment's defaults and limits, and the choices of the last visit. */
  describe(deployment, model) {
    this.deployment = deployment;
    this.model = model;
    const examples = examplesFor(deployment);
    byId("examples").replaceChildren(...examples.map(([name, prompt]) => this.#example(name, prompt)));
    byId("prompt").value ||= examples[0][1];
    const { has_chat_template: chats } = deployment;
    this.form.elements.send_as.value = chats ? "chat" : "text";
    this.form.elements.send_as.options[0].disabled = !chats;
    const { presets, defaults, limits } = deployment;
    const names = [[DEFAULT, "default"], ...Object.keys(presets).map((name) => [name, name])];
    byId("preset").replaceChildren(...names.map(([value, name]) => element("option", { value }, name)));
    this.form.elements.mode.value = defaults.mode;
    byId("sub_drafter").checked = defaults.sub_drafter;
    byId("draft_length").placeholder = `${defaults.draft_length.max}`;
    byId("draft_length").max = limits.draft_length;
    byId("max_tokens").max = limits.max_new_tokens;
    this.defaults = choicesOf(this.form);
    show(this.form, recalled(model));
    this.#announce();
  }

  /**
   * What the form says; null where a field is blank.
   *
   * Throws a Failure where a number is none, or the prompt is empty.
   */
  values() {
    const { elements } = this.form;
    if (!elements.prompt.value.trim()) throw new Failure("the prompt is empty", "write one, or take an example", "prompt");
    const numbers = NUMBERS.map((name) => [name, numberOf(elements[name])]);
    return {
      prompt: elements.prompt.value,
      send_as: elements.send_as.value,
      mode: elements.mode.value,
      preset: elements.preset.value || null,
      tail: elements.tail.value || null,
      sub_drafter: elements.sub_drafter.checked,
      ...Object.fromEntries(numbers),
    };
  }

  /** The unit in which the chosen rule measures entropy. */
  get measure() {
    return this.#rule()?.entropy === "normalized" ? SHARE : NATS;
  }

  /** Marks the field that a failure is about, and brings it into view with the error, which moves there. */
  blame({ field: name }) {
    const field = name && this.form.elements[name];
    if (!(field instanceof HTMLElement)) return;
    this.blamed = field;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", FAULT);
    field.closest(".field, .prompt").append(byId(FAULT));
    const group = field.closest("details");
    if (group) group.open = true;
    field.focus();
    byId(FAULT).scrollIntoView({ block: "nearest" });
  }

  /** Takes back what was said of a field. */
  absolve() {
    this.blamed?.removeAttribute("aria-invalid");
    this.blamed?.removeAttribute("aria-errormessage");
    this.blamed = null;
    byId(FAULT).textContent = "";
    byId("status").after(byId(FAULT));
  }

  #example(name, prompt) {
    const button = element("button", { type: "button", className: "small" }, name);
    button.addEventListener("click", () => {
      byId("prompt").value = prompt;
      this.form.dispatchEvent(new Event("input"));
    });
    return button;
  }

  #changed() {
    this.absolve();
    this.#announce();
    if (this.deployment) keep(this.model, choicesOf(this.form), this.defaults);
  }

  #reset(event) {
    event.preventDefault(); // the prompt and the key stay
    show(this.form, this.defaults ?? {});
    this.form.dispatchEvent(new Event("input"));
  }

  /** Says what the mode does, and what the rule has where a field is left blank. */
  #announce() {
    const mode = this.form.elements.mode.value;
    byId("mode-help").textContent = MODE_HELP[mode];
    const rule = this.#rule();
    if (!rule) return;
    byId("window").placeholder = rule.window;
    byId("threshold").placeholder = rule.threshold;
    byId("tail").options[0].textContent = rule.tail;
    byId("threshold-unit").textContent = this.measure;
  }

  #rule() {
    const preset = byId("preset").value;
    return preset === DEFAULT ? this.deployment?.defaults.rule : this.deployment?.presets[preset];
  }
}

function numberOf(field) {
  if (field.validity.badInput) throw new Failure(`${labelOf(field)} is no number`, "change it", field.id);
  return field.value === "" ? null : field.valueAsNumber;
}

function labelOf(field) {
  return field.labels[0].textContent;
}
