'use strict';
/*
 * The laws of the mechanisms and the Rényi divergences of their sums, in plain functions without a page.
 * They follow rqm.mechanisms, rqm.bounds and rqm.certify; inputs are in units of the clip, so clip = 1.
 * The same text runs in the page and in its worker.
 */
(function (scope) {
  const TABLE = 2 ** 40; // a row of randomized response holds so many units, as deployed
  const BLOCK = 16; // outcomes that share a power of two
  const EMPTY = -1e9; // the exponent of a block of zeros
  const SNAP = 1e-12; // a level this close to ±clip lies on it: only rounding keeps them apart

  // -- mechanisms -------------------------------------------------------------------------------

  /**
   * A mechanism from its parameters.
   * @param {{mechanism: string, levels: number, margin?: number, keep?: number|number[], theta?: number,
   *          epsilon?: number}} p
   */
  function mechanism(p) {
    const made = {
      rqm: () => ({ reach: 1 + p.margin, inputReach: 1 + p.margin, rows: rqmRows(keeps(p)) }),
      pbm: () => ({ reach: 1 / (2 * p.theta), inputReach: 1 / (2 * p.theta), rows: null }),
      rounding: () => ({ reach: 1 + p.margin, inputReach: 1 + p.margin, rows: identityRows(p.levels) }),
      'randomized-response': () => responseRows(p.levels, p.epsilon),
    }[p.mechanism]();
    return { ...p, ...made };
  }

  /** The probability of keeping each level of an RQM: 1 at the two ends. */
  function keeps(p) {
    const inner = Array.isArray(p.keep) ? p.keep : new Array(p.levels - 2).fill(p.keep);
    return [1, ...inner, 1];
  }

  /**
   * The chance S[j][i] that x = B(j), not kept itself, rounds down to its kept neighbour i ≤ j: with k the kept
   * neighbour above, the mean of (k−j)/(k−i). It follows from level j+1, which is either kept or not.
   */
  function bracket(keep) {
    const m = keep.length;
    const down = keep.map(() => new Float64Array(m));
    const inverse = keep.map(() => new Float64Array(m));
    for (let j = m - 2; j >= 0; j--) {
      const q = keep[j + 1];
      for (let i = 0; i <= j; i++) {
        inverse[j][i] = q / (j + 1 - i) + (1 - q) * inverse[j + 1][i];
        down[j][i] = q / (j + 1 - i) + (1 - q) * (down[j + 1][i] + inverse[j + 1][i]);
      }
    }
    return down;
  }

  /** Log-law of the levels i < j at input B(j), at [j][i]; other entries are meaningless. */
  function logBelow(keep) {
    const down = bracket(keep);
    const dropped = [0];
    for (let j = 1; j < keep.length; j++) dropped.push(dropped[j - 1] + Math.log1p(-keep[j]));
    return keep.map((_, j) =>
      keep.map((q, i) => (i < j ? Math.log(q) + dropped[j] - dropped[i] + Math.log(down[j][i]) : NaN)));
  }

  /** RQM's law at every level (Lemma 5.1), in logarithms. */
  function rqmRows(keep) {
    const top = keep.length - 1;
    const lower = logBelow(keep);
    const upper = logBelow([...keep].reverse());
    // What is dropped above the last inner level involves the outer one, which never is: rows 0 and top are points.
    return keep.map((q, j) => Float64Array.from(keep, (_, i) => {
      if (i === j) return Math.log(q);
      if (j === 0 || j === top) return -Infinity;
      return i < j ? lower[j][i] : upper[top - j][top - i];
    }));
  }

  function identityRows(m) {
    return Array.from({ length: m }, (_, j) => Float64Array.from({ length: m }, (_, i) => (i === j ? 0 : -Infinity)));
  }

  /** k-ary randomized response, rounded to the units of its integer table as deployed. */
  function responseRows(m, epsilon) {
    const other = Math.ceil(TABLE / (Math.exp(epsilon) + m - 1));
    const told = TABLE - (m - 1) * other;
    const logs = [Math.log(told) - Math.log(TABLE), Math.log(other) - Math.log(TABLE)];
    const rows = Array.from({ length: m }, (_, j) => Float64Array.from({ length: m }, (_, i) => logs[+(i !== j)]));
    return { reach: TABLE / (told - other), inputReach: 1, rows };
  }

  // -- laws -------------------------------------------------------------------------------------

  function logAdd(a, b) {
    const top = Math.max(a, b);
    return top === -Infinity ? top : top + Math.log1p(Math.exp(Math.min(a, b) - top));
  }

  /** log C(n, k), from a sum of logarithms. */
  function logChoose(n, k) {
    let total = 0;
    for (let i = 1; i <= Math.min(k, n - k); i++) total += Math.log(n + 1 - i) - Math.log(i);
    return total;
  }

  function binomial(p, x) {
    const trials = p.levels - 1;
    const [yes, no] = [Math.log(0.5 + p.theta * x), Math.log(0.5 - p.theta * x)];
    return Float64Array.from({ length: p.levels }, (_, k) => logChoose(trials, k) + k * yes + (trials - k) * no);
  }

  /** The law on the cell above level j, a part of the way along it. */
  function mix(mech, j, part) {
    const [below, above] = [Math.log1p(-part), Math.log(part)];
    return mech.rows[j].map((low, i) => logAdd(below + low, above + mech.rows[j + 1][i]));
  }

  /** The level below an input and how far along its cell the input lies. */
  function cell(mech, x) {
    const position = ((mech.levels - 1) / 2) * (1 + x / mech.inputReach);
    const level = Math.max(0, Math.min(mech.levels - 2, Math.floor(position)));
    return [level, position - level];
  }

  const clamp = (x) => Math.max(-1, Math.min(1, x));

  /** Natural logarithms of the probabilities of the levels 0, …, m−1 at input x (clipped). */
  function logPmf(mech, x) {
    return mech.rows ? mix(mech, ...cell(mech, clamp(x))) : binomial(mech, clamp(x));
  }

  /** The law at input x. */
  const pmf = (mech, x) => logPmf(mech, x).map(Math.exp);

  /** The decoded value of each level. */
  function values(mech) {
    return Array.from({ length: mech.levels }, (_, i) => mech.reach * ((2 * i) / (mech.levels - 1) - 1));
  }

  /** The variance of one client's decoded value at input x, in units of clip². */
  function variance(mech, x) {
    if (mech.mechanism === 'pbm') return (0.25 - (mech.theta * clamp(x)) ** 2) / (mech.theta ** 2 * (mech.levels - 1));
    const law = pmf(mech, x);
    return values(mech).reduce((sum, v, i) => sum + law[i] * (v - clamp(x)) ** 2, 0);
  }

  /** The largest variance over all inputs and where it is: on each cell it is affine in x minus x². */
  function varianceMax(mech) {
    if (mech.mechanism === 'pbm') return { value: variance(mech, 0), x: 0 };
    const x = breakpoints(mech).map((point) => point.x);
    const second = x.map((at) => variance(mech, at) + at * at);
    let best = { value: -1, x: 0 };
    for (let k = 0; k + 1 < x.length; k++) {
      const slope = (second[k + 1] - second[k]) / (x[k + 1] - x[k]);
      const at = Math.max(x[k], Math.min(x[k + 1], slope / 2));
      const value = second[k] + slope * (at - x[k]) - at * at;
      if (value > best.value * (1 + SNAP)) best = { value, x: at };
    }
    return best;
  }

  /** The inputs where a worst case can sit, with their log-laws: ±clip and every input level between them. */
  function breakpoints(mech) {
    if (mech.mechanism === 'pbm') return [-1, 1].map((x) => ({ x, law: logPmf(mech, x) }));
    const top = mech.levels - 1;
    const low = (top / 2) * (1 - 1 / mech.inputReach);
    const whole = Math.abs(low - Math.round(low)) < SNAP;
    const first = (whole ? Math.round(low) : Math.floor(low)) + 1;
    const inner = [];
    for (let j = first; j <= top - first; j++) {
      inner.push({ x: mech.inputReach * ((2 * j) / top - 1), law: mech.rows[j] });
    }
    const part = whole ? 0 : low - (first - 1);
    return [
      { x: -1, law: mix(mech, first - 1, part) },
      ...inner,
      { x: 1, law: mix(mech, top - first, 1 - part) },
    ];
  }

  const bits = (mech) => Math.ceil(Math.log2(mech.levels));

  /** Bits of a secure sum's coordinate: k with n (m−1) < 2^k. */
  const sumBits = (mech, n) => Math.floor(Math.log2(n * (mech.levels - 1))) + 1;

  /** RQM's Theorem 5.2: an upper bound on D_∞ of one client. */
  function theoremBound(mech) {
    return Math.log(2) + Math.log1p(1 / mech.margin) - keeps(mech).slice(1, -1).reduce((s, q) => s + Math.log1p(-q), 0);
  }

  // -- sums of independent clients --------------------------------------------------------------
  // A law is held in blocks, each with its own power of two: tails far below the smallest float keep their digits.

  function blocked(logLaw) {
    const length = logLaw.length;
    const law = { length, mantissa: new Float64Array(Math.ceil(length / BLOCK) * BLOCK), exponent: [] };
    for (let start = 0; start < length; start += BLOCK) {
      const part = Array.from(logLaw.slice(start, start + BLOCK), (v) => v / Math.LN2);
      const top = Math.max(...part);
      law.exponent.push(top === -Infinity ? EMPTY : Math.floor(top) + 1);
      if (top > -Infinity) part.forEach((v, z) => { law.mantissa[start + z] = 2 ** (v - Math.floor(top) - 1); });
    }
    return law;
  }

  /** The law of the sum of two independent integers. Only non-negative numbers are added. */
  function convolve(x, y) {
    if (x.length < y.length) [x, y] = [y, x];
    const length = x.length + y.length - 1;
    const blocks = Math.ceil(length / BLOCK);
    const out = { length, mantissa: new Float64Array(blocks * BLOCK), exponent: new Array(blocks).fill(EMPTY) };
    const window = new Float64Array(2 * BLOCK);
    for (let b = 0; b < blocks; b++) {
      const top = topExponent(x, y, b);
      for (let j = Math.max(0, b - x.exponent.length); j < Math.min(y.exponent.length, b + 1); j++) {
        if (y.exponent[j] === EMPTY) continue;
        fillWindow(window, x, b - j, y.exponent[j] - top);
        accumulate(out.mantissa, b * BLOCK, window, y, j);
      }
      normalise(out, b, top);
    }
    return out;
  }

  /** The largest power of two among the pairs of blocks that meet in block b. */
  function topExponent(x, y, b) {
    let top = EMPTY;
    for (let j = Math.max(0, b - x.exponent.length); j < Math.min(y.exponent.length, b + 1); j++) {
      if (b - j < x.exponent.length) top = Math.max(top, x.exponent[b - j] + y.exponent[j]);
      if (j < b) top = Math.max(top, x.exponent[b - j - 1] + y.exponent[j]);
    }
    return top;
  }

  /** Blocks i−1 and i of x side by side, on a common scale. */
  function fillWindow(window, x, i, shift) {
    const before = i > 0 ? 2 ** (x.exponent[i - 1] + shift) : 0;
    const here = i < x.exponent.length ? 2 ** (x.exponent[i] + shift) : 0;
    for (let z = 0; z < BLOCK; z++) {
      window[z] = before ? x.mantissa[(i - 1) * BLOCK + z] * before : 0;
      window[BLOCK + z] = here ? x.mantissa[i * BLOCK + z] * here : 0;
    }
  }

  function accumulate(sum, start, window, y, j) {
    const last = Math.min(BLOCK, y.length - j * BLOCK);
    for (let q = 0; q < last; q++) {
      const weight = y.mantissa[j * BLOCK + q];
      if (weight === 0) continue;
      for (let z = 0; z < BLOCK; z++) sum[start + z] += weight * window[z + BLOCK - q];
    }
  }

  function normalise(law, b, top) {
    let largest = 0;
    for (let z = b * BLOCK; z < (b + 1) * BLOCK; z++) largest = Math.max(largest, law.mantissa[z]);
    if (largest === 0) return;
    const power = Math.floor(Math.log2(largest)) + 1;
    for (let z = b * BLOCK; z < (b + 1) * BLOCK; z++) law.mantissa[z] *= 2 ** -power;
    law.exponent[b] = top + power;
  }

  /** Natural logarithms of the probabilities. */
  function logs(law) {
    const out = new Float64Array(law.length);
    for (let z = 0; z < law.length; z++) {
      out[z] = Math.log(law.mantissa[z]) + (law.mantissa[z] > 0 ? Math.LN2 * law.exponent[z >> 4] : 0);
    }
    return out;
  }

  const NOBODY = blocked([0]);

  /** Powers of a law (sums of so many copies), each computed once. */
  function powers(law) {
    const memo = new Map([[0, NOBODY], [1, law]]);
    return function power(count) {
      if (!memo.has(count)) memo.set(count, convolve(power(count >> 1), power(count - (count >> 1))));
      return memo.get(count);
    };
  }

  // -- divergences ------------------------------------------------------------------------------

  /**
   * The largest D_α(P_i ‖ P_j) over all ordered pairs of log-laws.
   * @returns {{value: number, i: number, j: number}}
   */
  function worstPair(laws, alpha) {
    const outcomes = laws[0].length;
    const [high, low] = [new Float64Array(outcomes), new Float64Array(outcomes)];
    for (let z = 0; z < outcomes; z++) {
      let [top, bottom] = [-Infinity, Infinity];
      for (const law of laws) {
        if (law[z] > top) top = law[z];
        if (law[z] < bottom) bottom = law[z];
      }
      high[z] = top;
      low[z] = bottom;
      if (bottom === -Infinity && top > -Infinity) return impossible(laws, z);
    }
    return alpha === Infinity ? worstRatio(laws, high, low) : worstMoment(laws, alpha, high, low);
  }

  /** Outcome z is possible under one law and not under another. */
  function impossible(laws, z) {
    const possible = (law) => law[z] > -Infinity;
    return { value: Infinity, i: laws.findLastIndex(possible), j: laws.findIndex((law) => !possible(law)) };
  }

  function worstRatio(laws, high, low) {
    let [best, at] = [-Infinity, 0];
    for (let z = 0; z < high.length; z++) if (high[z] - low[z] > best) [best, at] = [high[z] - low[z], z];
    const holder = (bound) => laws.findIndex((law) => law[at] === bound[at]);
    return { value: best, i: holder(high), j: holder(low) };
  }

  /**
   * p_i^α p_j^(1−α) is a factor of i times a factor of j. At each outcome both are taken relative to the largest
   * and smallest law, so none exceeds 1; the pair that is sought is at least 1, so underflow elsewhere is no loss.
   */
  function worstMoment(laws, alpha, high, low) {
    let scale = -Infinity;
    for (let z = 0; z < high.length; z++) {
      if (high[z] > -Infinity) scale = Math.max(scale, alpha * high[z] - (alpha - 1) * low[z]);
    }
    const [first, second] = factors(laws, alpha, high, low, scale);
    let best = { value: -Infinity, i: 0, j: 1 };
    for (let i = 0; i < laws.length; i++) {
      for (let j = 0; j < laws.length; j++) {
        if (i === j) continue;
        let sum = 0;
        for (let z = 0; z < high.length; z++) sum += first[i][z] * second[j][z];
        const value = (Math.log(sum) + scale) / (alpha - 1);
        if (value >= best.value * (1 - SNAP) || best.value === -Infinity) best = { value, i, j };
      }
    }
    return best;
  }

  function factors(laws, alpha, high, low, scale) {
    const weight = high.map((top, z) => (top > -Infinity ? Math.exp(alpha * top - (alpha - 1) * low[z] - scale) : 0));
    const first = laws.map((law) => law.map((v, z) => (weight[z] > 0 ? Math.exp(alpha * (v - high[z])) : 0)));
    const second = laws.map((law) =>
      law.map((v, z) => (weight[z] > 0 ? Math.exp((alpha - 1) * (low[z] - v)) * weight[z] : 0)));
    return [first, second];
  }

  // -- the worst case over everybody's inputs ----------------------------------------------------

  /** Keeps, for every order, the largest divergence seen and the inputs that attain it. */
  class Best {
    constructor(own, alphas) {
      this.own = own;
      this.alphas = alphas;
      this.found = alphas.map(() => ({ value: -Infinity, i: 0, j: 1, counts: [] }));
    }

    /** The others' sum is `base`, with so many of them at each of their breakpoints; true if some order got worse. */
    consider(base, counts) {
      const sums = this.own.map((law) => logs(convolve(base, law)));
      let better = false;
      this.alphas.forEach((alpha, a) => {
        const pair = worstPair(sums, alpha);
        if (pair.value > this.found[a].value * (1 + SNAP) || this.found[a].value === -Infinity) {
          this.found[a] = { ...pair, counts: [...counts] };
          better = true;
        }
      });
      return better;
    }
  }

  /** Visit the sum of `count` clients, each at one of two laws, for every split. Mirror images are left out. */
  function eachSplit(laws, count, visit) {
    const [minus, plus] = laws.map(powers);
    (function halve(base, low, high) { // base holds what all splits from low to high share
      if (2 * high < count) return;
      if (low === high) {
        visit(base, [count - low, low]);
        return;
      }
      const middle = (low + high) >> 1;
      halve(convolve(base, minus(high - middle)), low, middle);
      halve(convolve(base, plus(middle + 1 - low)), middle + 1, high);
    })(NOBODY, 0, count);
  }

  /** Visit the sum of `count` clients for every multiset of laws; of mirror images only one if `mirrored`. */
  function eachMultiset(laws, count, mirrored, visit) {
    const last = laws.length - 1;
    const rest = powers(laws[last]);
    const counts = new Array(laws.length).fill(0);
    const wanted = () => {
      for (let v = 0; v < last - v; v++) if (counts[v] !== counts[last - v]) return counts[v] < counts[last - v];
      return true;
    };
    (function place(base, v, left) {
      if (v === last) {
        counts[v] = left;
        if (!mirrored || wanted()) visit(() => convolve(base, rest(left)), counts);
        return;
      }
      for (let here = 0; here <= left; here++) {
        counts[v] = here;
        place(base, v + 1, left - here);
        if (here < left) base = convolve(base, laws[v]);
      }
      counts[v] = 0;
    })(NOBODY, 0, count);
  }

  function isMirrored(own) {
    const last = own.length - 1;
    return own.every((point, k) =>
      point.law.every((v, i) => v === own[last - k].law[point.law.length - 1 - i] ||
        Math.abs(v - own[last - k].law[point.law.length - 1 - i]) < SNAP));
  }

  const choose = (n, k) => Math.round(Math.exp(logChoose(n, k)));

  /** About how many inner operations it takes to try all inputs of n clients. */
  function work(mech, n, orders = 1) {
    const count = breakpoints(mech).length;
    const outcomes = n * (mech.levels - 1) + 1;
    const leaf = outcomes * (count * (mech.levels + 20) + orders * (count * count + 20 * count));
    if (n === 1) return leaf;
    if (mech.mechanism === 'pbm') return (outcomes / 2 + n) * leaf;
    if (count === 2) return n * leaf;
    return choose(n + count - 2, count - 1) * (leaf / 2 + outcomes * mech.levels);
  }

  /** Plain rounding with a level inside the clip: others there add no noise, and some outputs are impossible. */
  function hasNoPrivacy(mech) {
    return mech.mechanism === 'rounding' && breakpoints(mech).length > 2;
  }

  function noPrivacy(mech, n) {
    const others = n > 1 ? [[breakpoints(mech)[1].x, n - 1]] : [];
    return { lower: Infinity, upper: Infinity, x: 1, xPrime: -1, others };
  }

  /**
   * The worst case over the inputs of all n clients, for each order, by trying all of them: exp((α−1) D_α) is jointly
   * convex and every law is affine between breakpoints, so the worst inputs are breakpoints. A PBM client is m−1 trials, each
   * affine in its input: for the certified value all trials of the others are free.
   * @returns {{lower: number, upper: number, x: number, xPrime: number, others: number[][]}[]}
   */
  function exact(mech, n, alphas) {
    if (hasNoPrivacy(mech)) return alphas.map(() => noPrivacy(mech, n));
    const at = breakpoints(mech);
    const own = at.map((point) => blocked(point.law));
    const attained = new Best(own, alphas);
    if (at.length === 2) eachSplit(own, n - 1, (base, counts) => attained.consider(base, counts));
    else eachMultiset(own, n - 1, isMirrored(at), (base, counts) => attained.consider(base(), counts));
    const certified = mech.mechanism === 'pbm' && n > 1 ? freeTrials(mech, own, n, alphas) : attained;
    return attained.found.map((one, a) => meet(witness(at, one), certified.found[a].value));
  }

  /** Attained and certified together: where they are equal but for rounding, the same number. */
  function meet(found, certified) {
    const upper = Math.max(found.lower, certified);
    return { ...found, lower: upper <= found.lower * (1 + SNAP) ? upper : found.lower, upper };
  }

  function freeTrials(mech, own, n, alphas) {
    const [yes, no] = [Math.log(0.5 + mech.theta), Math.log(0.5 - mech.theta)];
    const best = new Best(own, alphas);
    const trials = [blocked([yes, no]), blocked([no, yes])];
    eachSplit(trials, (n - 1) * (mech.levels - 1), (base, counts) => best.consider(base, counts));
    return best;
  }

  function witness(at, found) {
    const others = found.counts.map((count, v) => [at[v].x, count]).filter(([, count]) => count > 0);
    return { lower: found.value, x: at[found.i].x, xPrime: at[found.j].x, others };
  }

  /**
   * A lower bound that is attained, where trying everything takes too long: the others all equal, then at two breakpoints.
   * @param {number} depth 0: all equal; 1: also halves; 2: also quarters, and single moves that make it worse
   */
  function search(mech, n, alphas, depth) {
    if (hasNoPrivacy(mech)) return alphas.map(() => noPrivacy(mech, n));
    const at = breakpoints(mech);
    const own = at.map((point) => blocked(point.law));
    const power = own.map(powers);
    const best = new Best(own, alphas);
    const sum = (counts) => counts.reduce((base, count, v) => (count ? convolve(base, power[v](count)) : base), NOBODY);
    const tryCounts = (counts) => best.consider(sum(counts), counts);
    const first = isMirrored(at) ? own.length >> 1 : 0; // mirror images leak the same
    for (let v = own.length - 1; v >= first; v--) tryCounts(countsAt(own.length, [[v, n - 1]]));
    for (const part of [[], [0.5], [0.25, 0.5, 0.75]][depth]) trySplits(own.length, n - 1, part, tryCounts);
    if (depth > 1) climb(best, n - 1, tryCounts);
    return best.found.map((one) => witness(at, one));
  }

  function countsAt(length, pairs) {
    const counts = new Array(length).fill(0);
    for (const [v, count] of pairs) counts[v] += count;
    return counts;
  }

  function trySplits(length, count, part, tryCounts) {
    const here = Math.round(part * count);
    if (here === 0 || here === count) return;
    for (let u = 0; u < length; u++) {
      for (let v = u + 1; v < length; v++) tryCounts(countsAt(length, [[u, here], [v, count - here]]));
    }
  }

  /** Move some of the others from one breakpoint to another as long as that is worse for somebody's order. */
  function climb(best, count, tryCounts) {
    const length = best.own.length;
    for (let step = Math.max(1, count >> 3); step >= 1; step = step > 1 ? step >> 1 : 0) {
      const start = best.found[0].counts;
      for (let u = 0; u < length; u++) {
        for (let v = 0; v < length && start[u] >= step; v++) {
          if (u !== v) tryCounts(start.map((c, k) => c + step * ((k === v) - (k === u))));
        }
      }
    }
  }

  // -- what is known about n clients --------------------------------------------------------------

  /**
   * For each order what is attained and what is certified, and how that is known.
   * More clients never leak more (adding one is post-processing), so a value certified for fewer holds here too.
   * @param {{budget: number, depth: number, grid?: object}} options
   */
  function known(mech, n, alphas, options) {
    if (hasNoPrivacy(mech)) return alphas.map(() => ({ ...noPrivacy(mech, n), lowerBy: 'none', upperBy: 'none' }));
    if (work(mech, n, alphas.length) <= options.budget) {
      return exact(mech, n, alphas).map((one) => ({ ...one, lowerBy: 'exact', upperBy: 'exact' }));
    }
    const stored = alphas.map((alpha) => gridBound(options.grid, mech, n, alpha));
    const found = enclosed(mech, n, alphas.filter((_, a) => !stored[a]), options);
    return stored.map((one) => one ?? found.shift());
  }

  /** What a search attains, and the smallest bound that is certified otherwise. */
  function enclosed(mech, n, alphas, options) {
    if (!alphas.length) return [];
    const fewer = largestAffordable(mech, n, alphas.length, options.budget);
    const certified = exact(mech, fewer, alphas);
    return search(mech, n, alphas, options.depth).map((one, a) => {
      const upper = { upper: certified[a].upper, upperBy: 'fewer', upperClients: fewer };
      return { ...one, lowerBy: 'search', ...smaller(upper, gridCertificate(options.grid, mech, n, alphas[a])) };
    });
  }

  const smaller = (one, other) => (other && other.upper < one.upper ? other : one);

  function largestAffordable(mech, n, orders, budget) {
    let fewer = 1;
    while (fewer + 1 < n && work(mech, fewer + 1, orders) <= budget) fewer++;
    return fewer;
  }

  const orderOf = (alpha) => (alpha === 'inf' ? Infinity : alpha);
  const PARAMETERS = ['mechanism', 'levels', 'margin', 'keep', 'theta', 'epsilon'];
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

  /** The grid's entry with exactly these parameters. */
  function gridSetting(grid, mech) {
    const fits = (one) => PARAMETERS.every((name) => !(name in one) || same(one[name], mech[name]));
    return grid && grid.settings.find(fits);
  }

  function gridEntry(grid, setting, n, alpha) {
    const row = setting.bounds[n];
    const entry = row && row[grid.orders.findIndex((one) => orderOf(one) === alpha)];
    if (!entry) return undefined;
    const [lower, upper, x, xPrime, others] = entry;
    return { lower, upper, x, xPrime, others, lowerBy: 'grid', upperBy: 'grid' };
  }

  /** The precomputed bound of exactly this setting, number of clients and order. */
  function gridBound(grid, mech, n, alpha) {
    const setting = gridSetting(grid, mech);
    return setting && gridEntry(grid, setting, n, alpha);
  }

  /**
   * What precomputed values certify for n clients and order α: those of at most n clients, at the orders around α.
   * (α−1) D_α is convex in α and 0 at 1, for any two laws, so between two orders its chord is a bound.
   */
  function gridCertificate(grid, mech, n, alpha) {
    const setting = gridSetting(grid, mech);
    const clients = setting && Math.max(...Object.keys(setting.bounds).map(Number).filter((k) => k <= n));
    if (!(clients > 0)) return undefined;
    const orders = [1, ...grid.orders.map(orderOf)];
    const at = orders.findIndex((one) => one >= alpha);
    const [low, high] = [orders[at - 1], orders[at]];
    const [below, above] = [low, high].map((one) => gridEntry(grid, setting, clients, one)?.upper ?? 0);
    const part = high === Infinity ? 1 : (alpha - low) / (high - low);
    const chord = ((1 - part) * (low - 1) * below + part * (high - 1) * above) / (alpha - 1);
    const upper = high === Infinity ? above : chord;
    return { upper, upperBy: 'grid-cover', upperClients: clients, upperOrders: [low, high] };
  }

  /** The precomputed setting of this mechanism that lies nearest, with its nearest n and α. */
  function gridNearest(grid, mech, n, alpha) {
    const kin = grid ? grid.settings.filter((one) => one.mechanism === mech.mechanism) : [];
    if (!kin.length || hasNoPrivacy(mech)) return undefined;
    const keep = Array.isArray(mech.keep) ? mech.keep.reduce((s, q) => s + q, 0) / mech.keep.length : mech.keep;
    const distance = (one) => ('margin' in one ? Math.abs(Math.log((1 + one.margin) / (1 + mech.margin))) : 0) +
      ('keep' in one ? Math.abs(one.keep - keep) : 0) + ('theta' in one ? Math.abs(one.theta - mech.theta) : 0) +
      ('epsilon' in one ? Math.abs(one.epsilon - mech.epsilon) : 0);
    const setting = nearest(kin, distance);
    const clients = nearest(Object.keys(setting.bounds).map(Number), (k) => Math.abs(Math.log(k / n)));
    const order = nearest(grid.orders.map(orderOf), (one) => Math.abs(1 / one - 1 / alpha));
    return { setting, clients, alpha: order, ...gridEntry(grid, setting, clients, order) };
  }

  const nearest = (list, distance) => list.reduce((a, b) => (distance(b) < distance(a) ? b : a));

  // -- what the page asks of its worker ------------------------------------------------------------

  const ORDERS = [1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 11, 16, 22, 32, 45, 64, Infinity];
  const CLIENTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 20, 28, 40, 55, 75, 100];

  /** At first what is quick, then what is better. */
  const PASSES = [{ budget: 3e6, depth: 0 }, { budget: 4e7, depth: 1 }];

  function byOrder(mech, n, options) {
    const found = known(mech, n, ORDERS, options);
    return ORDERS.map((alpha, a) => ({ alpha, ...found[a] }));
  }

  /** The mechanisms that a comparison sweeps over, as functions of t from 0 to 1. */
  function families(p) {
    const { levels } = p;
    const margin = p.mechanism === 'rqm' ? p.margin : 1;
    return [
      { name: 'rqm', parameter: 'keep', at: (t) => ({ levels, margin, keep: 0.02 + 0.96 * t }) },
      { name: 'pbm', parameter: 'theta', at: (t) => ({ levels, theta: 0.02 + 0.46 * t }) },
      { name: 'rounding', parameter: 'margin', at: (t) => ({ levels: 2, margin: 0.05 * 640 ** t }) },
      { name: 'randomized-response', parameter: 'epsilon', at: (t) => ({ levels, epsilon: 0.3 * 40 ** t }) },
    ];
  }

  /** One point of a family: its largest variance and its divergence, exact or attained by equal others. */
  function tradeoff(family, t, n, alpha) {
    const p = { mechanism: family.name, ...family.at(t) };
    const mech = mechanism(p);
    const isExact = work(mech, n) <= 1e6;
    const [one] = isExact ? exact(mech, n, [alpha]) : search(mech, n, [alpha], 0);
    return { parameter: p[family.parameter], variance: varianceMax(mech).value, value: one.lower, exact: isExact };
  }

  /**
   * Everything that takes longer than a frame, piece by piece: yields [kind, value], or nothing after a piece of one.
   * @param {{mechanism: object, n: number, alpha: number}} job
   */
  function* heavy(job, grid) {
    const mech = mechanism(job.mechanism);
    let points = [];
    for (const options of PASSES) {
      const better = { ...options, grid };
      yield ['numbers', known(mech, job.n, [job.alpha], better)[0]];
      if (options === PASSES[0]) yield ['orders', byOrder(mech, job.n, better)];
      else yield* overOrders(mech, job, better);
      points = yield* overClients(mech, job, { budget: options.budget, depth: 0, grid }, points);
      if (options === PASSES[0]) yield* overFamilies(job);
    }
  }

  /** The curve over α, a few orders at a time, each with as much work as the number of the current order. */
  function* overOrders(mech, job, options) {
    const points = [];
    for (let k = 0; k < ORDERS.length; k += 3) {
      const alphas = ORDERS.slice(k, k + 3);
      const budget = (options.budget * work(mech, 2, alphas.length)) / work(mech, 2, 1);
      const found = known(mech, job.n, alphas, { ...options, budget });
      points.push(...alphas.map((alpha, a) => ({ alpha, ...found[a] })));
      yield undefined;
    }
    yield ['orders', points];
  }

  /** The curve over n. The points of an earlier pass stay where this one cannot know more. */
  function* overClients(mech, job, options, before) {
    const points = [];
    for (const n of [...new Set([...CLIENTS, job.n])].sort((a, b) => a - b)) {
      const old = before.find((one) => one.n === n);
      if (!old || (old.lowerBy === 'search' && work(mech, n) <= options.budget)) {
        points.push({ n, ...known(mech, n, [job.alpha], options)[0] });
      } else {
        points.push(old.lowerBy === 'search' ? { ...old, ...smaller(old, fromFewer(points)) } : old);
      }
      yield undefined;
    }
    yield ['clients', points];
    return points;
  }

  /** The bound of the largest number of clients that is exact so far: it holds for more. */
  function fromFewer(points) {
    const last = points.findLast((one) => one.upperBy === 'exact');
    return last && { upper: last.upper, upperBy: 'fewer', upperClients: last.n };
  }

  function* overFamilies(job) {
    const current = (family) => family.name === job.mechanism.mechanism;
    const all = families(job.mechanism).sort((a, b) => current(b) - current(a));
    const curves = [];
    for (const family of all) {
      const steps = current(family) ? 24 : 12;
      const points = [];
      for (let k = 0; k <= steps; k++) {
        points.push(tradeoff(family, k / steps, job.n, job.alpha));
        yield undefined;
      }
      curves.push({ name: family.name, parameter: family.parameter, points });
      yield ['families', [...curves]];
    }
  }

  scope.rqm = {
    mechanism, pmf, values, variance, varianceMax, breakpoints, bits, sumBits, theoremBound, work, exact, search,
    known, hasNoPrivacy, byOrder, gridCertificate, heavy, ORDERS, PASSES, gridSetting, gridBound, gridNearest,
    renyi: (p, alpha, n = 1) => exact(mechanism(p), n, [alpha])[0],
  };
})(globalThis);
