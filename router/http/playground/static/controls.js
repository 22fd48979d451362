/* The form: what it says, what the deployment's defaults are, and which field is to blame. */

import { byId, element } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { Failure } from "./failure.js";
import { NATS } from "./run.js";

const NUMBERS = ["draft_length", "window", "threshold", "temperature", "top_p", "seed", "max_tokens"];
const MODE_HELP = {
  plain: "One token at a time, without drafts.",
  exact: "Drafts, of which only the target’s own tokens are kept: the same text as plain.",
  fly: "Drafts, and a mismatch is kept where the target is unsure and agrees with what follows.",
};
const DEFAULT = "";
const FAULT = "fault";
const SHARE = "a share of ln |V|";
const NARROW = "(max-width: 62rem)";

/** The form and what the deployment says of its fields. */
export class Controls {
  constructor() {
    this.form = byId("controls");
    this.deployment = null;
    this.blamed = null;
    byId("examples").replaceChildren(...EXAMPLES.map(([name, prompt]) => this.#example(name, prompt)));
    byId("prompt").value = EXAMPLES[0][1];
    this.form.addEventListener("input", () => this.#changed());
    if (matchMedia(NARROW).matches) for (const group of this.form.querySelectorAll("details")) group.open = false;
    this.#announce();
  }

  /** Shows a deployment's defaults and limits: presets, placeholders, ranges. */
  describe(deployment) {
    this.deployment = deployment;
    const { presets, defaults, limits } = deployment;
    const names = [[DEFAULT, "default"], ...Object.keys(presets).map((name) => [name, name])];
    byId("preset").replaceChildren(...names.map(([value, name]) => element("option", { value }, name)));
    this.form.elements.mode.value = defaults.mode;
    byId("sub_drafter").checked = defaults.sub_drafter;
    byId("draft_length").placeholder = `${defaults.draft_length.max}`;
    byId("draft_length").max = limits.draft_length;
    byId("max_tokens").max = limits.max_new_tokens;
    this.#announce();
  }

  /**
   * What the form says; null where a field is blank.
   *
   * Throws a Failure where a number is none.
   */
  values() {
    const { elements } = this.form;
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

  /** Marks the field that a failure is about, says why beside it, and brings it into view. */
  blame({ field: name, message }) {
    const field = name && this.form.elements[name];
    if (!(field instanceof HTMLElement)) return;
    this.blamed = field;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", FAULT);
    field.closest(".field, .prompt").append(element("p", { id: FAULT, className: "fault" }, message));
    const group = field.closest("details");
    if (group) group.open = true;
    field.focus();
  }

  /** Takes back what was said of a field. */
  absolve() {
    this.blamed?.removeAttribute("aria-invalid");
    this.blamed?.removeAttribute("aria-errormessage");
    this.blamed = null;
    byId(FAULT)?.remove();
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
