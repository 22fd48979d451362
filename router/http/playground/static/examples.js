/* Held-out problems of the demo pair, one of each family (demo/tasks). */
export const EXAMPLES = [
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
