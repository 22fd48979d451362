"""Draft/target pairs with random weights, of any size, whose agreement is set by one number.

The pairs serve benchmarks at sizes that are not trained here: every layer is computed in
full, every weight is read, and the two models still agree like a trained pair. Both share one bigram map.

*Token code.* Every token t has a random unit vector e(t). The embedding is e(t), turned into the model's own
hidden space by an isometry, so that the two models have different weights of the same meaning.

*Permutation head.* Every token has one successor: a permutation that is one cycle through the whole
vocabulary, so that text never repeats and looking it up is useless; or, with a `period`, many short cycles,
each of which text never leaves, so that everything comes again. Head row `successor(t)` is e(t), scaled
so that with silent layers the logit of the successor of t is `peak`, and all others lie near 0.

*Branch mixing.* A second successor gets a share of e(t) that is uniform in 0 to `branch`. At a branch of 1
some tokens are a toss-up between two successors: there the target's entropy is high, and the models disagree
most. This is the case for FLy.

*Calibrated residual noise.* Attention and MLP weights are random, so what the layers add to the residual
stream is noise that depends on the whole context, and is independent in the two models. One factor on all
their output projections is calibrated until this noise is `noise * sqrt(hidden)` times as long as the
embedding. The final norm shrinks the signal by `sqrt(1 + noise^2 * hidden)`, which the head makes up for: so
the noise of a logit is `noise * peak` in standard deviations, whatever the hidden size. Agreement falls
smoothly with it, from all to chance.

*Sub-drafter.* A third model of the same kind may be narrower than the token code. It sees a random projection
of the code, which keeps angles but for noise of its own: another reason to disagree.
"""
