'use strict';
/* The part of the page about a user's (ε, δ): its fields, what it refuses and why, and what it shows. */
(function () {
  const { rqmUser } = window;
  const element = (id) => document.getElementById(id);

  const MOST = 2 ** 53 - 1;
  const FIELDS = {
    epsilon: { label: '<i>ε</i>, what every user is promised', start: 3, low: 1e-3, high: 100 },
    delta: { label: '<i>δ</i>, the chance that it fails', start: 1e-6, low: 1e-15, high: 0.1 },
    n: { label: '<i>n</i>, clients of a round', start: 1000, low: 1, high: MOST, whole: true },
    honest: { label: 'of whom honest, at least', start: 1000, low: 1, high: MOST, whole: true },
    rounds: { label: '<i>T</i>, rounds', start: 250, low: 1, high: 1e9, whole: true },
    k: { label: '<i>k</i>, rounds a user takes part in, at most', start: 1, low: 1, high: 1e9, whole: true },
    apart: { label: 'rounds from one turn to the next, at least', start: 1, low: 1, high: 1e9, whole: true },
    d: { label: '<i>d</i>, parameters of the model', start: 1000000, low: 1, high: 2 ** 40, whole: true },
    bits: { label: 'bits a client sends for a number', start: 1, low: 1, high: 16, whole: true },
  };
  const NAMES = {
    epsilon: 'ε', delta: 'δ', n: 'n', honest: 'honest', rounds: 'T', k: 'k', apart: 'rounds to the next turn', d: 'd', bits: 'bits',
  };
  const START = Object.fromEntries(Object.entries(FIELDS).map(([name, { start }]) => [name, start]));
  const PRESETS = [
    ['A keyboard: a million phones, each once', { ...START }],
    ['The demo: 54 rounds of 400, each user once, ε = 8', { epsilon: 8, delta: 1e-5, n: 400, honest: 400, rounds: 54, k: 1, apart: 1, d: 48670, bits: 1 }],
    ['3,400 writers who take turns, a small model', { epsilon: 10, delta: 1e-5, n: 100, honest: 100, rounds: 340, k: 10, apart: 34, d: 100000, bits: 1 }],
    ['A survey: one mean of fifty numbers, 800 of 1,000 honest', { epsilon: 1, delta: 1e-6, n: 1000, honest: 800, rounds: 1, k: 1, apart: 1, d: 50, bits: 1 }],
    ['Twenty clinics: too few to hide in', { epsilon: 1, delta: 1e-6, n: 20, honest: 16, rounds: 100, k: 100, apart: 1, d: 10000, bits: 1 }],
  ];
  let typed = Object.fromEntries(Object.entries(START).map(([name, value]) => [name, String(value)]));

  // -- what is refused ----------------------------------------------------------------------------

  /** The number that a text says, if the field allows it; else why not. */
  function parsed(name, text) {
    const { low, high, whole } = FIELDS[name];
    const value = Number(String(text).trim().replace(',', '.'));
    const range = `from ${plain(low)} to ${plain(high)}`;
    const bad = String(text).trim() === '' || !Number.isFinite(value) || value < low || value > high;
    if (bad || (whole && !Number.isInteger(value))) {
      return { why: `${NAMES[name]} = ${String(text).slice(0, 30) || 'nothing'}: must be ${whole ? 'a whole number ' : ''}${range}` };
    }
    return { value };
  }

  /** All numbers, and for each field what is wrong with it. */
  function read() {
    const [values, wrong] = [{}, {}];
    for (const name of Object.keys(FIELDS)) {
      const { value, why } = parsed(name, typed[name]);
      if (why) wrong[name] = why;
      else values[name] = value;
    }
    const { n, honest, rounds, k, apart } = values;
    if (honest > n) wrong.honest = `honest = ${honest}: must be at most n = ${n}`;
    if (k > rounds) wrong.k = `k = ${k}: must be at most T = ${rounds}`;
    else if (k > 1 && (k - 1) * apart >= rounds) {
      wrong.apart = `${k} turns, ${apart} rounds apart, do not fit into ${rounds} rounds: must be at most ${Math.floor((rounds - 1) / (k - 1))}`;
    }
    return { values, wrong };
  }

  // -- numbers as text ----------------------------------------------------------------------------

  function plain(value) {
    const rounded = Number(value.toPrecision(4));
    if (Number.isInteger(value) && value < 1e15) return value.toLocaleString('en');
    return Math.abs(rounded) >= 1e-3 && Math.abs(rounded) < 1e6 ? rounded.toLocaleString('en', { maximumSignificantDigits: 4 }) : rounded.toExponential(2);
  }

  function bytes(count) {
    const [unit, size] = [['GB', 1e9], ['MB', 1e6], ['kB', 1e3], ['bytes', 1]].find(([, one]) => count >= one) ?? ['bytes', 1];
    return `${plain(Math.round((count / size) * 100) / 100)} ${unit}`;
  }

  const STRENGTH = [
    [1, 'a strong promise'], [3, 'a promise of some strength'], [8, 'a weak promise'], [20, 'hardly a promise'], [Infinity, 'no promise that protects anybody'],
  ];

  function sentence({ epsilon, delta }, { odds }) {
    const words = STRENGTH.find(([most]) => epsilon <= most)[1];
    return `Whatever the server makes of all that it sees is at most ${plain(odds)} times likelier with a user’s data than with
      any other data in their place, but for a chance of ${plain(delta)}: ${words}.`;
  }

  /** What the noise does to learning, by what was measured: 250 rounds of 1,000 clients on EMNIST (docs/cancel.md). */
  function learns(ofMean) {
    if (ofMean < 1) return 'little accuracy is lost';
    if (ofMean < 4) return 'some accuracy is lost (EMNIST at 3.2: 73.5 %, without noise 80.9 %)';
    if (ofMean < 20) return 'much accuracy is lost (EMNIST at 8.7: 63.9 %, without noise 80.9 %)';
    return 'more than was ever measured here: take more clients, a smaller model, or a larger ε';
  }

  // -- what is shown ------------------------------------------------------------------------------

  function rows(p, found) {
    const alone = found.ofMean;
    const shared = p.honest < p.n ? `; all ${plain(p.n)} together add ${plain(found.noise)}, since the others’ may be known to the server` : '';
    return [
      ['noise', 'Noise of the sum that the honest clients add', `${plain(found.counted)} L2 clips`, `exact, for Gaussian noise${shared}`, found.counted],
      ['mean', 'Noise of the mean vector, over the longest that it can be', plain(alone), learns(alone), alone],
      ['coordinate', 'Noise of one number of the mean, in L2 clips', plain(found.ofCoordinate), 'standard deviation', found.ofCoordinate],
      cancelledRow(p, found),
      ['margin', 'The 1-bit mechanism with that noise', found.margin > 0 ? `margin Δ = ${plain(found.margin)}` : 'has more noise than that',
        found.margin > 0 ? `levels at ±${plain(1 + found.margin)} clips of a coordinate, after a rotation to ${plain(found.coordinates)} numbers` : 'more bits are needed: rqm.PrivateMean takes four of PBM', found.margin],
      ['bits', 'Bits of a masked number', `${found.sumBits}`, `${bytes(found.bytes)} a client and round`, found.sumBits],
      ['known', 'The same, certified for integers', `<code>${command(p)}</code>`, 'what integers need beyond Gaussian noise, it proves', ''],
    ].filter((row) => !(row[0] === 'margin' && p.bits !== 1));
  }

  function cancelledRow(p, { cancelled, ofMean }) {
    const head = 'Noise in the models if clients take it back a round later';
    if (cancelled === null) return ['cancelled', head, 'not possible', p.rounds === 1 ? 'there is no later round' : 'users come back in the very next round', 1];
    if (cancelled === undefined) {
      return ['cancelled', head, 'not computed', `of more than ${plain(rqmUser.MOST_ROUNDS)} rounds this page does not compute it; rqm advise does`, ''];
    }
    const shared = `as if the mean vector’s noise were ${plain(cancelled * ofMean)}: ${learns(cancelled * ofMean)}`;
    return ['cancelled', head, `${plain(cancelled)} of independent noise’s`, `${shared}; clients send two messages, in a fixed order`, cancelled];
  }

  function command(p) {
    const apart = p.k > 1 && p.apart > 1 ? ` --separation ${p.apart}` : '';
    const honest = p.honest < p.n ? ` --honest ${p.honest}` : '';
    return `rqm advise --clients ${p.n} --dim ${rqmUser.padded(p.d)} --rounds ${p.rounds} --participations ${p.k}${apart}${honest} --epsilon ${p.epsilon} --delta ${p.delta}`;
  }

  function crowdRows(p) {
    return [1, 10, 100].filter((times) => p.n * times <= MOST).map((times) => {
      const found = rqmUser.promise({ ...p, n: p.n * times, honest: p.honest * times });
      const cancelled = typeof found.cancelled === 'number' ? plain(found.cancelled * found.ofMean) : '–';
      return `<tr><td>${plain(p.n * times)}</td><td>${plain(found.ofMean)}</td><td>${cancelled}</td></tr>`;
    });
  }

  function show() {
    const { values, wrong } = read();
    for (const name of Object.keys(FIELDS)) {
      const field = element(`u-${name}`);
      if (field.value !== typed[name] && document.activeElement !== field) field.value = typed[name];
      field.setAttribute('aria-invalid', name in wrong);
      element(`u-${name}-why`).textContent = wrong[name] ?? '';
    }
    element('u-apart').parentElement.hidden = values.k === 1;
    for (const button of element('u-presets').children) {
      const wanted = PRESETS[button.dataset.preset][1];
      button.setAttribute('aria-pressed', Object.entries(wanted).every(([name, value]) => values[name] === value));
    }
    const good = Object.keys(wrong).length === 0;
    element('u-found').hidden = !good;
    element('u-refused').hidden = good;
    if (!good) {
      element('u-refused').textContent = `Nothing is computed: ${Object.values(wrong).join('; ')}.`;
      return;
    }
    const found = rqmUser.promise(values);
    element('u-sentence').textContent = sentence(values, found).replace(/\s+/g, ' ');
    element('u-numbers').tBodies[0].innerHTML = rows(values, found).map(([id, head, text, note, value]) =>
      `<tr id="u-row-${id}"><th scope="row">${head}</th><td data-value="${value}">${text}${note && `<small>${note}</small>`}</td></tr>`).join('');
    element('u-crowd').tBodies[0].innerHTML = crowdRows(values).join('');
  }

  // -- the form -----------------------------------------------------------------------------------

  let changed = () => {};

  function set(part) {
    typed = { ...typed, ...Object.fromEntries(Object.entries(part).map(([name, value]) => [name, String(value)])) };
    show();
    changed();
  }

  function make() {
    element('u-fields').innerHTML = Object.entries(FIELDS).map(([name, { label }]) => `
      <div class="field"><label for="u-${name}">${label}</label>
      <input id="u-${name}" type="text" inputmode="decimal" autocomplete="off" aria-describedby="u-${name}-why">
      <span class="why" id="u-${name}-why"></span></div>`).join('');
    for (const name of Object.keys(FIELDS)) {
      element(`u-${name}`).addEventListener('input', (event) => set({ [name]: event.target.value }));
    }
    element('u-presets').innerHTML = PRESETS.map(([label], k) => `<button type="button" data-preset="${k}">${label}</button>`).join('');
    element('u-presets').addEventListener('click', (event) => {
      const chosen = event.target.dataset.preset;
      if (chosen !== undefined) set(PRESETS[chosen][1]);
    });
    element('user-form').addEventListener('submit', (event) => event.preventDefault());
  }

  make();
  window.rqmUserForm = {
    /** What a link says of this part: only what differs from the start. */
    toHash: () => Object.keys(FIELDS).filter((name) => typed[name] !== String(START[name])).map((name) => `u-${name}=${encodeURIComponent(typed[name])}`),
    fromHash(fields) {
      for (const name of Object.keys(FIELDS)) {
        let text = fields.get(`u-${name}`) ?? String(START[name]);
        try { text = decodeURIComponent(text); } catch { /* as it is: it will be refused */ }
        typed[name] = text;
        element(`u-${name}`).value = text;
      }
      show();
    },
    reset() { set(START); },
    onChange(what) { changed = what; },
  };
})();
