/* Example prompts that suit the served model: pairs of a name and a prompt. */

/** Return the examples for the demo's model, a model with a chat template, or any other model. */
export function examplesFor({ is_demo: isDemo, has_chat_template: chats }) {
  if (isDemo) return DEMO;
  return chats ? MESSAGES : BEGINNINGS;
}

const MESSAGES = [
  ["Explain", "Explain in three sentences why the sky is blue."],
  ["Edit", "Correct the spelling, and repeat the rest unchanged: The quick brown fox jumps ovr the lazy dog, and teh dog sleeps."],
  ["Code", "Write a Python function that returns the prime numbers below n."],
];

const BEGINNINGS = [
  ["Story", "Once upon a time, in a village by the sea,"],
  ["List", "The planets of the solar system, from the Sun outwards: 1. Mercury, 2. Venus, 3."],
  ["Code", "def primes_below(n):\n"],
];

/* Held-out problems of the demo pair, one of each family (demo/tasks). */
const DEMO = [
  [
    "Word problem",
    "Xena owns 47 buttons. Later Xena drops 4 of the buttons. Next Xena gets 6 packs with 3 buttons each. Next Xena sells 17 of the buttons. Later Xena finds 36 more buttons. After that Xena gets 2 jars with 6 buttons each. How many buttons does Xena have now?",
  ],
  [
    "Look-up",
    "These people work at the hospital. Jonas K163 from Quito with Felix. June G575 from Havana with Vera. Felix J991 from Perth with Rosa. Vera T446 from Rome with Zoe. Liam X075 from Tokyo with Otto. Zoe V185 from Austin with Liam. Otto J315 from Dakar with Jonas. Rosa G608 from Sofia with June. Look up the badge of Vera, the badge of the partner of Liam, the badge of the partner of Rosa.",
  ],
  [
    "Trace",
    "Follow the program and list all variables at the end: z 8; u 8; s 36; z += s; u = z; s *= 2; s -= u; z -= s; z += 8.",
  ],
];
