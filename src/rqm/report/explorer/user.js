'use strict';
/*
 * A user's (ε, δ): the noise that it takes, by the exact account of Gaussian noise, and what becomes of it in the models.
 * Follows rqm.bounds, rqm.accounting.calibration and rqm.correlated, in plain functions without a page.
 */
(function (scope) {
  const ROOT2 = Math.SQRT2;
  const UP = 1 + 1e-14; // more than the relative errors of probabilities, as in Python
  const MOMENTUM = 0.9; // of the server's steps, whose rate falls to zero: the defaults of a plan

  // -- the normal law ---------------------------------------------------------------------------

  /** exp(x²) erfc(x) for x ≥ 2, by its continued fraction from the far end. */
  function scaledTail(x) {
    let tail = x;
    for (let k = 160; k > 0; k--) tail = x + k / 2 / tail;
    return 1 / (Math.sqrt(Math.PI) * tail);
  }

  /** erf by a series whose terms are all positive. */
  function smallErf(x) {
    let [term, sum] = [x, x];
    for (let k = 1; term > 1e-18 * sum; k++) sum += term *= (2 * x * x) / (2 * k + 1);
    return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
  }

  /** log Φ(x), with all digits far out, too. */
  function logNdtr(x) {
    const z = -x / ROOT2;
    if (z >= 2) return Math.log(scaledTail(z) / 2) - z * z;
    return Math.log(z > 0 ? (1 - smallErf(z)) / 2 : z > -2 ? (1 + smallErf(-z)) / 2 : ndtr(x));
  }

  /** Φ(x). */
  function ndtr(x) {
    const z = Math.abs(x) / ROOT2;
    const tail = z >= 2 ? (Math.exp(-z * z) * scaledTail(z)) / 2 : (1 - smallErf(z)) / 2;
    return x < 0 ? tail : 1 - tail;
  }

  // -- (ε, δ) of Gaussian noise -----------------------------------------------------------------

  /** δ of telling N(0, 1) from N(μ, 1) at ε (Balle and Wang 2018). */
  function gaussianDelta(mu, epsilon) {
    const likely = ndtr(mu / 2 - epsilon / mu) * UP;
    return Math.min(1, Math.max(0, likely - Math.exp(epsilon + logNdtr(-mu / 2 - epsilon / mu))));
  }

  /** Where a rising function passes zero, between two values. */
  function root(rising, low, high) {
    for (let k = 0; k < 200 && high - low > 1e-15 * high; k++) {
      const middle = (low + high) / 2;
      if (rising(middle) <= 0) low = middle;
      else high = middle;
    }
    return low;
  }

  /** The largest μ that is (ε, δ)-private. */
  function gaussianMu(epsilon, delta) {
    let high = 1;
    while (gaussianDelta(high, epsilon) <= delta) high *= 2;
    return root((mu) => gaussianDelta(mu, epsilon) - delta, 1e-9, high) * (1 - 1e-10);
  }

  /** The smallest ε that μ has at δ. */
  function gaussianEpsilon(mu, delta) {
    if (gaussianDelta(mu, 0) <= delta) return 0;
    let high = 1;
    while (gaussianDelta(mu, high) > delta) high *= 2;
    return root((epsilon) => delta - gaussianDelta(mu, epsilon), 0, high) * (1 + 1e-10) + 1e-11;
  }

  /** The noise of a sum, in L2 clips, with which a user in k rounds has (ε, δ): his vector may be replaced by any other. */
  const gaussianNoise = (epsilon, delta, k) => ((2 * Math.sqrt(k)) / gaussianMu(epsilon, delta)) * (1 + 1e-9);

  // -- noise in the models ----------------------------------------------------------------------

  /** How long a shift of the noise is held, 0 … rounds − 1: the best for Gaussians of these variances. */
  function holding(rounds, transient, others) {
    const angle = 2 * Math.asinh(Math.sqrt(others / transient) / 2);
    const first = rounds * angle;
    const longer = (left) => (Math.exp(left - first) * Math.expm1(-2 * left)) / Math.expm1(-2 * first);
    return Float64Array.from({ length: rounds }, (_, j) => longer(first - j * angle) - longer(first - (j + 1) * angle));
  }

  /** μ² of a shift by one step where noise is taken back and both kinds are Gaussian of these variances. */
  function gaussianPaths(rounds, transient, others) {
    if (rounds === 1) return 1 / others;
    let [longer, told] = [1, 0];
    holding(rounds, transient, others).forEach((chance, j) => {
      longer -= chance;
      told += (chance * chance) / others + (j < rounds - 1 ? (longer * longer) / transient : 0);
    });
    return told;
  }

  /** Mean squares of the models' noise for unit noise in every round: one that stays, one that is taken back. */
  function gains(rounds) {
    const weights = new Float64Array(rounds + 1); // of the round that follows, at the models from it on
    let [stays, goes] = [0, 0];
    for (let turn = rounds - 1; turn >= 0; turn--) {
      let [weight, power] = [0, 1];
      for (let at = turn; at < rounds; at++) {
        weight += (1 - at / rounds) * power;
        power *= MOMENTUM;
        const change = weight - (at > turn ? weights[at] : 0);
        stays += weight * weight;
        goes += change * change;
        weights[at] = weight;
      }
    }
    return { stays: stays / rounds, goes: goes / rounds };
  }

  /** The models' noise over that of independent noise with the same guarantee; transient noise over persistent. */
  function overIndependent({ stays, goes }, apart, ratio) {
    return Math.sqrt((stays + goes * ratio * ratio) * gaussianPaths(apart, ratio * ratio, 1) / stays);
  }

  /** The least of these, over all ratios. */
  function leastCancelled(rounds, apart) {
    const gain = gains(rounds);
    const cost = (logarithm) => overIndependent(gain, apart, Math.exp(logarithm));
    let [low, high] = [Math.log(1e-2), Math.log(1e4)];
    const golden = (Math.sqrt(5) - 1) / 2;
    for (let k = 0; k < 80; k++) {
      const [a, b] = [high - golden * (high - low), low + golden * (high - low)];
      if (cost(a) < cost(b)) high = b;
      else low = a;
    }
    return cost((low + high) / 2);
  }

  // -- all of it --------------------------------------------------------------------------------

  const MOST_ROUNDS = 5000; // a second's work in this page

  /** The smallest power of two that is not below d. */
  function padded(d) {
    let power = 1;
    while (power < d) power *= 2;
    return power;
  }

  /** Bits of a whole number; a logarithm would be rounded. */
  function bitLength(value) {
    let bits = 0;
    while (2 ** bits <= value) bits++;
    return bits;
  }

  /**
   * What a promise takes.
   * @param {{epsilon: number, delta: number, d: number, rounds: number, k: number, apart: number, n: number,
   *          honest: number, bits: number}} p apart: rounds from a user's turn to the next, at least
   */
  function promise(p) {
    const counted = gaussianNoise(p.epsilon, p.delta, p.k); // what the honest clients' noise must be
    const noise = counted * Math.sqrt(p.n / p.honest);
    const coordinates = padded(p.d);
    const clip = Math.min(4, Math.sqrt(coordinates)) / Math.sqrt(coordinates);
    const apart = p.k === 1 ? p.rounds : p.apart;
    const sumBits = bitLength(p.n * (2 ** p.bits - 1));
    return {
      odds: Math.exp(p.epsilon),
      mu: gaussianMu(p.epsilon, p.delta),
      counted,
      noise,
      ofCoordinate: noise / p.n,
      ofMean: (noise * Math.sqrt(coordinates)) / p.n,
      margin: counted / (clip * Math.sqrt(p.honest)) - 1, // of the 1-bit mechanism with that noise
      cancelled: apart === 1 ? null : p.rounds > MOST_ROUNDS ? undefined : leastCancelled(p.rounds, apart),
      coordinates,
      sumBits,
      bytes: (coordinates * sumBits) / 8,
    };
  }

  scope.rqmUser = {
    ndtr, logNdtr, gaussianDelta, gaussianMu, gaussianEpsilon, gaussianNoise, gaussianPaths, gains, leastCancelled,
    padded, promise, MOST_ROUNDS,
  };
})(typeof globalThis === 'undefined' ? self : globalThis);
