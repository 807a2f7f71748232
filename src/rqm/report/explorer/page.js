'use strict';
/* The page: its state, controls, plots and permalinks. All numbers come from law.js. */
(function () {
  const { rqm } = window;
  const grid = JSON.parse(element('grid').textContent);

  function element(id) {
    return document.getElementById(id);
  }

  // -- state ------------------------------------------------------------------------------------

  const SCOPE = 'per coordinate, one round, one client replaced';
  const STOPS = [
    1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64,
    Infinity,
  ];
  const CONTROLS = {
    levels: { label: 'Levels <i>m</i>', min: 2, max: 32, step: 1 },
    margin: { label: 'Margin <i>Δ</i> beyond the clip <small>in units of c</small>', min: 0.05, max: 4, step: 0.01 },
    keep: { label: 'Keep a level with probability <i>q</i>', min: 0.02, max: 0.98, step: 0.01 },
    theta: { label: 'Lean <i>θ</i>', min: 0.01, max: 0.49, step: 0.01 },
    epsilon: { label: 'Randomized response’s <i>ε</i>', min: 0.1, max: 12, step: 0.1 },
    x: { label: 'Input <i>x</i> <small>in units of c</small>', min: -1, max: 1, step: 0.01 },
    n: { label: 'Clients <i>n</i> in the sum', min: 1, max: 100, step: 1 },
    alpha: { label: 'Order <i>α</i> <small>1.1 to 64, or ∞</small>', min: 1.1, max: 64, stops: STOPS },
  };
  const WIDE = { ...CONTROLS.margin, min: 0, max: 32, step: 0.05 }; // the 1-bit mechanism needs wide margins
  const USES = {
    rqm: ['levels', 'margin', 'keep'],
    pbm: ['levels', 'theta'],
    rounding: ['levels', 'margin'],
    'randomized-response': ['levels', 'epsilon'],
  };
  const NAMES = { rqm: 'RQM', pbm: 'PBM', rounding: 'Rounding', 'randomized-response': 'Randomized response' };
  const NAMED = { levels: 'm', margin: 'Δ', keep: 'q', theta: 'θ', epsilon: 'ε', x: 'x', n: 'n', alpha: 'α' };
  const SYMBOLS = { levels: 'm', margin: 'Δ', keep: 'q', theta: 'θ', epsilon: 'ε' };
  const DEFAULTS = {
    mechanism: 'rqm', levels: 16, margin: 1, keep: 0.42, keeps: null, theta: 0.25, epsilon: 4, n: 40, alpha: 2, x: 0.3,
  };
  const PRESETS = [
    ['RQM Δ=c, q=.42', { mechanism: 'rqm', levels: 16, margin: 1, keep: 0.42, keeps: null }],
    ['RQM Δ=2c, q=.57', { mechanism: 'rqm', levels: 16, margin: 2, keep: 0.57, keeps: null }],
    ['RQM Δ=.66c, q=.33', { mechanism: 'rqm', levels: 16, margin: 0.66, keep: 0.33, keeps: null }],
    ['PBM θ=.25', { mechanism: 'pbm', levels: 16, theta: 0.25 }],
    ['1-bit Δ=4c', { mechanism: 'rounding', levels: 2, margin: 4 }],
    ['Response ε=4', { mechanism: 'randomized-response', levels: 16, epsilon: 4 }],
  ];
  let state = { ...DEFAULTS };
  let mirrored = true; // whether editing one level's keep also edits its mirror image

  const rule = (name) => (name === 'margin' && state.mechanism === 'rounding' ? WIDE : CONTROLS[name]);
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const tidy = (value) => Number(value.toPrecision(12));

  /** A value that the control allows, or undefined: nothing is taken to the nearest that is allowed. */
  function allowed(name, text) {
    const { min, max, step } = rule(name);
    if (name === 'alpha' && /^(inf(inity)?|∞)$/i.test(String(text).trim())) return Infinity;
    const value = Number(text);
    if (String(text).trim() === '' || !Number.isFinite(value) || (step === 1 && !Number.isInteger(value))) return undefined;
    return value >= min && value <= max ? tidy(value) : undefined;
  }

  /** Why a value is refused, and where it is computed instead. */
  function refusal(name, text) {
    const { min, max, step } = rule(name);
    const elsewhere = name === 'n' ? '; rqm privacy --clients computes others' : '';
    const kind = step === 1 ? 'a whole number ' : '';
    return `${NAMED[name]} = ${String(text).slice(0, 30) || 'nothing'}: must be ${kind}from ${min} to ${max} here${elsewhere}`;
  }

  /** Say what was refused, or changed together with something else; nothing hides what was said before. */
  function notice(lines) {
    element('notice').hidden = lines.length === 0;
    element('notice').textContent = lines.join('. ') + (lines.length ? '.' : '');
  }

  /** What law.js calls the mechanism's parameters. */
  function parameters() {
    const chosen = { mechanism: state.mechanism };
    for (const name of USES[state.mechanism]) chosen[name] = state[name];
    if (state.mechanism === 'rqm' && state.keeps) chosen.keep = state.keeps;
    return chosen;
  }

  /** Change the state so that it stays consistent, then draw. */
  function change(part) {
    const before = state;
    state = { ...state, ...part };
    const told = [];
    if (part.mechanism && before.mechanism !== state.mechanism && !('levels' in part)) {
      if (state.mechanism === 'rounding') state.levels = 2; // what is private about rounding is its one bit
      else if (before.mechanism === 'rounding') state.levels = DEFAULTS.levels;
      if (state.levels !== before.levels) told.push(`m is now ${state.levels}, as this mechanism is used`);
    }
    const fits = clamp(state.margin, rule('margin').min, rule('margin').max);
    if (fits !== state.margin && USES[state.mechanism].includes('margin')) told.push(`Δ was ${state.margin}, and is now ${fits}, the most that is shown here`);
    state.margin = fits;
    if (state.keeps && state.keeps.length !== state.levels - 2) {
      state.keeps = resized(state.keeps, state.levels - 2);
      told.push('The keeps of the levels are those of the nearest levels before');
    }
    notice(told);
    refresh();
  }

  function resized(keeps, length) {
    if (length === 0) return null;
    const last = keeps.length - 1;
    return Array.from({ length }, (_, i) => keeps[Math.round((i * last) / Math.max(1, length - 1))] ?? state.keep);
  }

  // -- permalinks -------------------------------------------------------------------------------

  function toHash() {
    const fields = { mechanism: state.mechanism };
    for (const name of [...USES[state.mechanism], 'x', 'n', 'alpha']) {
      fields[name] = state[name] === Infinity ? 'inf' : state[name];
    }
    if (state.mechanism === 'rqm' && state.keeps) fields.keeps = state.keeps.join(',');
    const own = Object.entries(fields).map(([name, value]) => `${name}=${value}`);
    return '#' + [...own, ...window.rqmUserForm.toHash()].join('&');
  }

  /** The state that a hash describes; what it leaves out is as at the start, and so is what it gets wrong, which is said. */
  function fromHash(hash) {
    const fields = new Map(hash.replace(/^#/, '').split('&').map((pair) => pair.split('=', 2)));
    state = { ...DEFAULTS };
    const told = [];
    if (Object.hasOwn(USES, fields.get('mechanism') ?? '')) state.mechanism = fields.get('mechanism');
    else if (fields.has('mechanism')) told.push(`mechanism = ${String(fields.get('mechanism')).slice(0, 30)}: is not known here`);
    if (state.mechanism === 'rounding') state.levels = 2;
    for (const name of Object.keys(CONTROLS)) {
      const value = fields.has(name) ? allowed(name, fields.get(name)) : undefined;
      if (value !== undefined) state[name] = value;
      else if (fields.has(name)) told.push(`${refusal(name, fields.get(name))}; shown is ${shown(state[name])}`);
    }
    const keeps = (fields.get('keeps') ?? '').split(',').map((text) => allowed('keep', text));
    if (keeps.length === state.levels - 2 && keeps.every((q) => q !== undefined)) state.keeps = keeps;
    else if (fields.has('keeps')) told.push(`keeps: must be ${state.levels - 2} numbers, one for each inner level`);
    window.rqmUserForm.fromHash(fields);
    notice(told);
  }

  let hashTimer = 0;
  function writeHash() {
    clearTimeout(hashTimer); // browsers refuse hundreds of changes in a row
    hashTimer = setTimeout(() => {
      if (location.hash !== toHash()) history.replaceState(null, '', toHash());
    }, 120);
  }

  // -- controls ---------------------------------------------------------------------------------

  /** The place of the stop nearest to an order; by inverses, so that ∞ is one of them. */
  function stopOf(alpha) {
    const far = STOPS.map((one) => Math.abs(1 / one - 1 / alpha));
    return far.indexOf(Math.min(...far));
  }

  const shown = (value) => (value === Infinity ? '∞' : String(value));

  function makeControls() {
    element('sliders').innerHTML = Object.entries(CONTROLS).map(([name, one]) => `
      <div class="control" data-name="${name}">
        <label for="${name}">${one.label}</label>
        <input type="range" id="${name}" ${one.stops ? `min="0" max="${one.stops.length - 1}" step="1"` : ''}>
        <input class="exact" id="${name}-value" type="text" inputmode="decimal" autocomplete="off"
          aria-label="${one.label.replace(/<[^>]*>/g, '')}, exact value">
      </div>${name === 'keep' ? keepsMarkup() : ''}`).join('');
    for (const name of Object.keys(CONTROLS)) connect(name);
    element('each').addEventListener('change', (event) => {
      change({ keeps: event.target.checked ? uniformKeeps() : null });
    });
    element('mirror').addEventListener('change', (event) => { mirrored = event.target.checked; });
    element('mechanism').addEventListener('change', (event) => change({ mechanism: event.target.value }));
    makePresets();
  }

  function keepsMarkup() {
    return `<div id="each-row"><label class="check"><input type="checkbox" id="each"> a keep for each level</label>
      <div id="keeps-row">
      <div class="keeps" id="keeps" role="group" aria-label="Keep probability of each inner level"></div>
      <label class="check"><input type="checkbox" id="mirror" checked> edit mirror images together</label></div></div>`;
  }

  function connect(name) {
    const range = element(name);
    range.addEventListener('input', () => {
      change({ [name]: CONTROLS[name].stops ? STOPS[range.value] : allowed(name, range.value) });
    });
    const exact = element(`${name}-value`);
    exact.addEventListener('change', () => {
      const value = allowed(name, exact.value.replace(',', '.'));
      if (value !== undefined) {
        change({ [name]: value });
        return;
      }
      notice([`${refusal(name, exact.value)}; shown is still ${shown(state[name])}`]);
      exact.value = shown(state[name]);
    });
  }

  function makePresets() {
    const button = ([label], k) => `<button type="button" data-preset="${k}">${label}</button>`;
    element('presets').innerHTML = PRESETS.map(button).join('');
    element('presets').addEventListener('click', (event) => {
      const chosen = event.target.dataset.preset;
      if (chosen !== undefined) change(PRESETS[chosen][1]);
    });
  }

  const uniformKeeps = () => (state.levels > 2 ? new Array(state.levels - 2).fill(state.keep) : null);

  /** Show the state in the controls. */
  function showControls() {
    element('mechanism').value = state.mechanism;
    for (const name of Object.keys(CONTROLS)) showControl(name);
    const isRqm = state.mechanism === 'rqm';
    element('each-row').hidden = !isRqm || state.levels < 3;
    element('each').checked = Boolean(state.keeps);
    element('keeps-row').hidden = !state.keeps;
    showKeeps();
    for (const button of element('presets').children) {
      const wanted = Object.entries(PRESETS[button.dataset.preset][1]);
      button.setAttribute('aria-pressed', wanted.every(([name, value]) => state[name] === value));
    }
  }

  function showControl(name) {
    const range = element(name);
    const used = ['x', 'n', 'alpha', ...USES[state.mechanism]].includes(name);
    range.parentElement.hidden = !used || (name === 'keep' && (Boolean(state.keeps) || state.levels < 3));
    const { min, max, step, stops } = rule(name);
    if (!stops) Object.assign(range, { min, max, step });
    range.value = stops ? stopOf(state[name]) : state[name];
    range.setAttribute('aria-valuetext', shown(state[name]));
    const exact = element(`${name}-value`);
    if (exact.value !== shown(state[name])) exact.value = shown(state[name]);
  }

  function showKeeps() {
    const host = element('keeps');
    const keeps = state.keeps ?? [];
    if (host.children.length !== keeps.length) {
      host.innerHTML = keeps.map((_, k) => `<span><input type="range" min="0.02" max="0.98" step="0.01"
        aria-label="keep of level ${k + 1}" data-level="${k}">${k + 1}</span>`).join('');
    }
    keeps.forEach((q, k) => {
      const slider = host.children[k].firstElementChild;
      slider.value = q;
      slider.title = `level ${k + 1}: q = ${q}`;
    });
  }

  function editKeep(event) {
    const level = Number(event.target.dataset.level);
    const keeps = [...state.keeps];
    keeps[level] = allowed('keep', event.target.value);
    if (mirrored) keeps[keeps.length - 1 - level] = keeps[level];
    change({ keeps });
  }

  // -- numbers as text --------------------------------------------------------------------------

  /** Four digits: to the nearest, or for bounds to the safe side. */
  function digits(value, side = 0) {
    if (value === Infinity) return '∞';
    if (value === 0) return '0';
    const unit = 10 ** (Math.floor(Math.log10(Math.abs(value))) - 3);
    const steps = [Math.floor(value / unit + 1e-9), Math.round(value / unit), Math.ceil(value / unit - 1e-9)][side + 1];
    const rounded = Number((steps * unit).toPrecision(4));
    return Math.abs(rounded) >= 1e-4 && Math.abs(rounded) < 1e5 ? String(rounded) : rounded.toExponential(3);
  }

  const down = (value) => digits(value, -1);
  const up = (value) => digits(value, 1);
  const short = (value) => String(Number(value.toFixed(4)));
  const symbol = (alpha) => (alpha === Infinity ? 'D∞' : 'Dα');

  function settingText(one) {
    return `${NAMES[one.mechanism]} ` + USES[one.mechanism].map((name) => `${SYMBOLS[name]}=${one[name]}`).join(', ');
  }

  function storedText(setting, n, alpha) {
    return `precomputed at ${settingText(setting)}, n=${n}, α=${shown(alpha)}`;
  }

  const TRIED = ', all tried in this page';
  const isTrials = () => state.mechanism === 'pbm' && state.n > 1;

  function lowerText(one) {
    if (one.lowerBy === 'none') return 'with a level inside the clip some outputs are impossible for some inputs';
    if (one.lowerBy === 'exact') return (isTrials() ? 'others at ±c' : 'exact: all inputs') + TRIED;
    if (one.lowerBy === 'grid') return storedText(parameters(), state.n, state.alpha);
    return 'found by a search in this page; the worst may be worse';
  }

  function upperText(one) {
    if (one.upperBy === 'none') return 'no bound exists: no privacy';
    if (one.upperBy === 'exact') return (isTrials() ? 'each trial of the others at ±c' : 'exact: all inputs') + TRIED;
    if (one.upperBy === 'grid') return storedText(parameters(), state.n, state.alpha);
    if (one.upperBy === 'grid-cover') return coverText(one);
    const clients = one.upperClients === 1 ? '1 client' : `${one.upperClients} clients`;
    return `certified for ${clients}; more clients never leak more`;
  }

  /** A bound that follows from precomputed ones. */
  function coverText({ upperClients, upperOrders: [low, high] }) {
    const single = low === 1 || high === Infinity || state.alpha === high;
    const orders = single ? shown(high) : `${low} and ${high}, (α−1)·D being convex`;
    return `follows from precomputed values at n=${upperClients}, α=${orders}`;
  }

  // -- the table ----------------------------------------------------------------------------------

  function showNumbers(mech, one) {
    setOutput('lower', one.lower, one.lower === one.upper ? up(one.lower) : down(one.lower), lowerText(one));
    setOutput('upper', one.upper, up(one.upper), upperText(one));
    element('unit').textContent = `D of order α = ${shown(state.alpha)}, n = ${state.n}: ${SCOPE}`;
    element('numbers').tBodies[0].innerHTML = [...costRows(mech), ...privacyRows(mech, one)].map(rowMarkup).join('');
  }

  /** @param {[string, string, string, string?, number?]} row its id, its head, what it shows, a note, all digits */
  function rowMarkup([id, head, text, note = '', value = '']) {
    return `<tr id="row-${id}"><th scope="row">${head}</th>
      <td data-value="${value}">${text}${note && `<small>${note}</small>`}</td></tr>`;
  }

  function setOutput(id, value, text, how) {
    const output = element(id);
    output.textContent = text;
    output.dataset.value = value;
    element(`${id}-by`).textContent = how;
  }

  function costRows(mech) {
    const { value, x } = rqm.varianceMax(mech);
    const n = state.n;
    const ofMean = n > 1 ? `; of the mean of ${n}: at most ${digits(value / n)}` : '';
    return [
      ['bits', 'Bits a coordinate', `${rqm.bits(mech)}`, '', rqm.bits(mech)],
      ['sum-bits', `Bits of the secure sum of ${n}`, `${rqm.sumBits(mech, n)}`, '', rqm.sumBits(mech, n)],
      ['variance', 'Largest variance, in clip²', digits(value), `at x = ${short(x)}${ofMean}`, value],
    ];
  }

  function privacyRows(mech, one) {
    const [local, message] = rqm.exact(mech, 1, [state.alpha, Infinity]);
    const note = message.upper === Infinity ? 'no privacy' : 'exact: attained and certified';
    const rows = [];
    if (state.n > 1) {
      const head = `D of order ${shown(state.alpha)} of one message (n = 1)`;
      rows.push(['local', head, up(local.upper), note, local.upper]);
    }
    rows.push(['pure', 'ε<sub>∞</sub> of one message (n = 1)', up(message.upper), `${note}; pure differential privacy`, message.upper]);
    if (mech.mechanism === 'rqm') {
      const bound = rqm.theoremBound(mech);
      rows.push(['theorem', 'Theorem 5.2’s bound on it', up(bound), 'certified; the paper’s formula', bound]);
    }
    const pair = `x = ${short(one.x)}, x′ = ${short(one.xPrime)}`;
    rows.push(['inputs', 'Worst inputs found', pair, othersText(one.others)]);
    return [...rows, ...nearestRow(mech, one)];
  }

  function othersText(others) {
    if (!others.length) return 'no others';
    return 'others: ' + others.map(([x, count]) => `${count} at ${short(x)}`).join(', ');
  }

  /** Where neither the page nor the grid knows this setting: the nearest one that is precomputed, as such. */
  function nearestRow(mech, one) {
    if (one.lowerBy !== 'search') return [];
    const near = rqm.gridNearest(grid, mech, state.n, state.alpha);
    if (!near) return [];
    const at = `${storedText(near.setting, near.clients, near.alpha)}; the current setting is not on the grid`;
    const exact = near.lower === near.upper;
    const text = exact ? `${up(near.upper)} (exact)` : `${down(near.lower)} attained, ${up(near.upper)} certified`;
    return [['nearest', 'Nearest precomputed', text, at]];
  }

  // -- plots: scales and frames -------------------------------------------------------------------

  const EDGE = { left: 52, right: 14, top: 12, bottom: 38 };
  const figures = {}; // what each plot can tell under the pointer

  function linear(min, max, from, to) {
    const scale = (v) => from + ((v - min) / (max - min)) * (to - from);
    return Object.assign(scale, { min, max, ticks: linearTicks(min, max) });
  }

  function logarithmic(min, max, from, to) {
    const span = Math.log(max / min);
    const scale = (v) => from + (Math.log(v / min) / span) * (to - from);
    return Object.assign(scale, { min, max, ticks: logTicks(min, max) });
  }

  function linearTicks(min, max) {
    const rough = (max - min) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((one) => one >= rough);
    const ticks = [];
    for (let k = Math.ceil(min / step - 1e-9); k * step <= max + 1e-9 * step; k++) ticks.push(tidy(k * step));
    return ticks;
  }

  function logTicks(min, max) {
    const all = (digitsUsed) => {
      const ticks = [];
      for (let power = Math.floor(Math.log10(min)); 10 ** power <= max; power++) {
        for (const digit of digitsUsed) {
          const tick = tidy(digit * 10 ** power);
          if (tick >= min * 0.999 && tick <= max * 1.001) ticks.push(tick);
        }
      }
      return ticks;
    };
    const few = [[1, 2, 3, 4, 6, 8], [1, 2, 5], [1, 3], [1]].map(all).find((ticks) => ticks.length <= 7);
    return few ?? all([1]).filter((_, k) => k % 2 === 0);
  }

  /** The room of a plot; a window may have none before it is shown. */
  function size(id) {
    return [Math.max(160, element(id).clientWidth), Math.max(120, element(id).clientHeight)];
  }

  /** A frame with scales: `scaleX` and `scaleY` take (from, to) in pixels. */
  function frame(id, { scaleX, scaleY, labelX, labelY }) {
    const [width, height] = size(id);
    const x = scaleX(EDGE.left, width - EDGE.right);
    const y = scaleY(height - EDGE.bottom, EDGE.top);
    return { id, width, height, x, y, labelX, labelY, back: [], marks: [], points: [] };
  }

  const px1 = (length) => length.toFixed(1);
  const svgText = (x, y, text, anchor = 'middle', more = '') =>
    `<text x="${px1(x)}" y="${px1(y)}" text-anchor="${anchor}" ${more}>${text}</text>`;
  const svgLine = (x1, y1, x2, y2, name) =>
    `<line x1="${px1(x1)}" y1="${px1(y1)}" x2="${px1(x2)}" y2="${px1(y2)}" class="${name}"/>`;
  const svgDot = (x, y, name, radius = 3) => `<circle cx="${px1(x)}" cy="${px1(y)}" r="${radius}" class="${name}"/>`;
  const svgRect = (x, y, width, height, name) =>
    `<rect x="${px1(x)}" y="${y.toFixed(2)}" width="${px1(width)}" height="${height.toFixed(2)}" class="${name}"/>`;
  const pathOf = (points) => points.map(([x, y], k) => `${k ? 'L' : 'M'}${x.toFixed(2)},${y.toFixed(2)}`).join('');

  function tickText(tick) {
    const plain = tick === 0 || (Math.abs(tick) >= 1e-3 && Math.abs(tick) < 1e5);
    return plain ? String(tick) : tick.toExponential(0);
  }

  function axes(f) {
    const bottom = f.height - EDGE.bottom;
    const right = f.width - EDGE.right;
    const vertical = f.y.ticks.map((tick) => svgLine(EDGE.left, f.y(tick), right, f.y(tick), 'gridline') +
      svgText(EDGE.left - 6, f.y(tick) + 4, tickText(tick), 'end'));
    const horizontal = f.x.ticks.map((tick) =>
      svgLine(f.x(tick), bottom, f.x(tick), bottom + 4, 'axis') + svgText(f.x(tick), bottom + 16, tickText(tick)));
    return vertical.join('') + svgLine(EDGE.left, bottom, right, bottom, 'axis') + horizontal.join('') +
      svgText((EDGE.left + right) / 2, f.height - 4, f.labelX, 'middle', 'class="title"') +
      svgText(0, 0, f.labelY, 'middle', `class="title" transform="translate(11,${(EDGE.top + bottom) / 2}) rotate(-90)"`);
  }

  function finish(f, summary) {
    const content = f.back.join('') + axes(f) + f.marks.join('') + '<g class="cursor"></g>';
    element(f.id).innerHTML = picture(f.width, f.height, summary, content);
    figures[f.id] = f;
  }

  function picture(width, height, summary, content) {
    return `<svg role="img" aria-label="${summary}" viewBox="0 0 ${width} ${height}">${content}</svg>
      <div class="tip" hidden></div>`;
  }

  function nothingToPlot(id, text) {
    const [width, height] = size(id);
    delete figures[id];
    element(id.replace('plot', 'legend')).textContent = '';
    const content = svgText(width / 2, height / 2, text, 'middle', 'class="strong"');
    element(id).innerHTML = picture(width, height, text, content);
  }

  /** Under the pointer: the nearest point, with its values. */
  function point(event) {
    const host = event.currentTarget;
    const f = figures[host.id];
    if (!f || !f.points.length) return;
    const box = host.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const far = (one) => Math.abs(one.px - px) + (f.planar ? Math.abs(one.py - py) : 0);
    const near = f.points.reduce((a, b) => (far(b) < far(a) ? b : a));
    host.querySelector('.cursor').innerHTML =
      svgLine(near.px, EDGE.top, near.px, f.height - EDGE.bottom, 'here-line') + svgDot(near.px, near.py, 'here', 5);
    showTip(host, near, f);
  }

  function showTip(host, near, f) {
    const tip = host.querySelector('.tip');
    tip.hidden = false;
    tip.textContent = near.text;
    const left = near.px + 12 + tip.offsetWidth > f.width ? near.px - 12 - tip.offsetWidth : near.px + 12;
    tip.style.left = `${clamp(left, 0, Math.max(0, f.width - tip.offsetWidth))}px`;
    tip.style.top = `${clamp(near.py - tip.offsetHeight - 10, 0, f.height - tip.offsetHeight)}px`;
  }

  function unpoint(event) {
    if (event.pointerType === 'touch') return; // a finger leaves at once; what it asked for stays
    const host = event.currentTarget;
    host.querySelector('.tip')?.setAttribute('hidden', '');
    const cursor = host.querySelector('.cursor');
    if (cursor) cursor.innerHTML = '';
  }

  // -- plots: one each ----------------------------------------------------------------------------

  function drawLaw(mech) {
    const law = rqm.pmf(mech, state.x);
    const at = rqm.values(mech);
    const pad = mech.reach / (mech.levels - 1) + 0.04 * mech.reach;
    const f = frame('plot-law', {
      scaleX: (a, b) => linear(-mech.reach - pad, mech.reach + pad, a, b),
      scaleY: (a, b) => linear(0, Math.max(...law) * 1.12, a, b),
      labelX: 'decoded value, in units of the clip', labelY: 'probability',
    });
    const base = f.height - EDGE.bottom;
    const wide = Math.max(2, Math.min(46, 0.72 * (f.x(at[1]) - f.x(at[0]))));
    f.back.push(svgRect(f.x(-1), EDGE.top, f.x(1) - f.x(-1), base - EDGE.top, 'inside'));
    at.forEach((value, i) => {
      const [px, py] = [f.x(value), f.y(law[i])];
      f.marks.push(svgRect(px - wide / 2, py, wide, Math.max(0, base - py), 'bar'));
      f.points.push({ px, py, text: `level ${i} decodes to ${short(value)}\nprobability ${digits(law[i])}` });
    });
    const mean = at.reduce((sum, value, i) => sum + value * law[i], 0);
    f.marks.push(svgLine(f.x(mean), EDGE.top + 2, f.x(mean), base, 'mean'));
    const px = f.x(state.x);
    f.marks.push(`<path class="input" d="M${px.toFixed(2)},${base}l-6,9h12z"/>`);
    finish(f, `Law at x = ${state.x}: its mean is ${short(mean)}`);
    element('law-readout').innerHTML = `<span class="input-key">▲</span> x = ${short(state.x)} &nbsp;
      <span class="mean-key">┆</span> mean of the law = ${short(mean)} (unbiased) &nbsp;
      standard deviation ${digits(Math.sqrt(rqm.variance(mech, state.x)))}`;
  }

  function drawVariance(mech) {
    const xs = Array.from({ length: 161 }, (_, k) => k / 80 - 1);
    const values = xs.map((x) => rqm.variance(mech, x));
    const worst = rqm.varianceMax(mech);
    const f = frame('plot-variance', {
      scaleX: (a, b) => linear(-1, 1, a, b),
      scaleY: (a, b) => linear(0, worst.value * 1.15, a, b),
      labelX: 'input x, in units of the clip', labelY: 'variance, in clip²',
    });
    const text = (x, value) => `x = ${short(x)}\nvariance ${digits(value)}`;
    f.points = xs.map((x, k) => ({ px: f.x(x), py: f.y(values[k]), text: text(x, values[k]) }));
    f.marks.push(svgLine(f.x(state.x), EDGE.top, f.x(state.x), f.height - EDGE.bottom, 'here-line'));
    f.marks.push(`<path class="line" d="${pathOf(f.points.map((one) => [one.px, one.py]))}"/>`);
    f.marks.push(svgDot(f.x(worst.x), f.y(worst.value), 'dot certified', 4.5));
    f.marks.push(svgDot(f.x(state.x), f.y(rqm.variance(mech, state.x)), 'here', 5));
    const px = clamp(f.x(worst.x), EDGE.left + 60, f.width - 75);
    f.marks.push(svgText(px, f.y(worst.value) - 9, `largest: ${digits(worst.value)}`, 'middle', 'class="strong halo"'));
    finish(f, `Variance against x: at most ${digits(worst.value)} clip²`);
  }

  /** A bound for n clients holds for more, until a better one is known: a line with steps where it is not exact. */
  function stairs(points, px, py) {
    return points.flatMap((one, k) => {
      const flat = k > 0 && one.upper > one.lower ? [[px(one), py(points[k - 1].upper)]] : [];
      return [...flat, [px(one), py(one.upper)]];
    });
  }

  /** The attained and the certified line and the band between them; `px` gives a point's place. */
  function band(f, points, px, upper = points.map((one) => [px(one), f.y(one.upper)])) {
    const lower = points.map((one) => [px(one), f.y(one.lower)]);
    const apart = points.some((one) => one.upper > one.lower * (1 + 1e-9));
    if (apart) {
      f.marks.push(`<path class="band" d="${pathOf([...lower, ...[...upper].reverse()])}Z"/>`);
      f.marks.push(`<path class="line certified" d="${pathOf(upper)}"/>`);
    }
    f.marks.push(`<path class="line" d="${pathOf(lower)}"/>`);
    const stored = points.filter((one) => one.upperBy === 'grid');
    for (const one of stored) {
      f.marks.push(svgDot(px(one), f.y(one.upper), 'dot certified'), svgDot(px(one), f.y(one.lower), 'dot'));
    }
    const both = [['line', 'attained'], ['line certified', 'certified']];
    const lines = apart ? both : [['line', 'exact: attained = certified']];
    element(f.id.replace('plot', 'legend')).innerHTML = lines.map(([name, text]) => keyEntry(name, text)).join('') +
      (stored.length ? '<span>● precomputed</span>' : '');
  }

  function keyEntry(name, text) {
    return `<span><svg viewBox="0 0 28 8" aria-hidden="true">${svgLine(0, 4, 28, 4, name)}</svg>${text}</span>`;
  }

  function pointText(head, one) {
    const by = { exact: 'exact', grid: 'precomputed', search: 'found by search' }[one.lowerBy];
    if (one.lower === one.upper) return `${head}\n${up(one.upper)} (${by})`;
    return `${head}\nattained ${down(one.lower)} (${by})\ncertified ${up(one.upper)}`;
  }

  function drawOrders(points) {
    element('orders-sub').textContent = `n = ${state.n}; ${SCOPE}`;
    if (points.some((one) => one.upper === Infinity)) {
      nothingToPlot('plot-orders', 'D is infinite: no privacy');
      return;
    }
    const finite = points.filter((one) => one.alpha < Infinity);
    const f = frame('plot-orders', {
      scaleX: (a, b) => logarithmic(1.1, 64, a, b - 34),
      scaleY: (a, b) => linear(0, Math.max(...points.map((one) => one.upper)) * 1.08, a, b),
      labelX: 'order α', labelY: 'divergence Dα',
    });
    f.x.ticks = [1.1, 2, 4, 8, 16, 32, 64];
    const px = (one) => (one.alpha === Infinity ? f.width - EDGE.right - 8 : f.x(one.alpha));
    band(f, finite, px);
    atInfinity(f, points, px);
    const text = (one) => pointText(`α = ${shown(one.alpha)}`, one);
    f.points = points.map((one) => ({ px: px(one), py: f.y(one.lower), text: text(one) }));
    f.back.push(svgLine(px(state), EDGE.top, px(state), f.height - EDGE.bottom, 'here-line'));
    finish(f, `D against α for ${state.n} clients, up to ${up(points.at(-1).upper)} at infinity`);
  }

  function atInfinity(f, points, px) {
    const last = points.at(-1);
    f.marks.push(svgText(px(last), f.height - EDGE.bottom + 16, '∞'));
    f.marks.push(svgDot(px(last), f.y(last.upper), 'dot certified', 4), svgDot(px(last), f.y(last.lower), 'dot', 4));
  }

  function drawClients(points) {
    element('clients-sub').textContent = `α = ${shown(state.alpha)}; ${SCOPE}`;
    if (points.some((one) => one.upper === Infinity)) {
      nothingToPlot('plot-clients', 'D is infinite: no privacy');
      return;
    }
    const low = Math.min(...points.map((one) => one.lower));
    const high = Math.max(...points.map((one) => one.upper));
    const f = frame('plot-clients', {
      scaleX: (a, b) => logarithmic(1, 100, a, b),
      scaleY: (a, b) => (low > high / 4 ? linear(0, high * 1.1, a, b) : logarithmic(low * 0.85, high * 1.2, a, b)),
      labelX: 'clients n', labelY: state.alpha === Infinity ? 'divergence D∞' : `divergence of order ${state.alpha}`,
    });
    f.x.ticks = [1, 2, 5, 10, 20, 50, 100];
    band(f, points, (one) => f.x(one.n), stairs(points, (one) => f.x(one.n), f.y));
    f.points = points.map((one) => ({ px: f.x(one.n), py: f.y(one.lower), text: pointText(`n = ${one.n}`, one) }));
    f.back.push(svgLine(f.x(state.n), EDGE.top, f.x(state.n), f.height - EDGE.bottom, 'here-line'));
    const range = `from ${up(points[0].upper)} to ${down(points.at(-1).lower)}`;
    finish(f, `D against the number of clients at α = ${shown(state.alpha)}: ${range}`);
  }

  function drawFamilies(curves, mech, one) {
    const here = { variance: rqm.varianceMax(mech).value, value: one.lower };
    const all = curves.flatMap((curve) => curve.points).filter((p) => Number.isFinite(p.value) && p.value > 0);
    const isExact = all.every((p) => p.exact);
    const kind = isExact ? 'exact' : 'attained (a lower bound)';
    element('families-sub').textContent = `α = ${shown(state.alpha)}, n = ${state.n}, ${kind}; ${SCOPE}`;
    const [left, right] = [here.variance / 30, here.variance * 30];
    const near = all.filter((p) => p.variance >= left && p.variance <= right).concat(here.value < Infinity ? here : []);
    const [xs, ys] = [near.map((p) => p.variance), near.map((p) => p.value)];
    const f = frame('plot-families', {
      scaleX: (a, b) => logarithmic(Math.min(...xs, here.variance) * 0.85, Math.max(...xs, here.variance) * 1.15, a, b),
      scaleY: (a, b) => logarithmic(Math.min(...ys) * 0.8, Math.max(...ys) * 1.25, a, b),
      labelX: 'largest variance of one client, in clip²', labelY: `${symbol(state.alpha)} at n = ${state.n}`,
    });
    f.planar = true;
    for (const curve of curves) familyLine(f, curve);
    if (here.value < Infinity) {
      const place = [f.x(here.variance), f.y(here.value)];
      f.marks.push(svgDot(...place, 'here', 6), svgDot(...place, 'dot', 3));
    }
    finish(f, `Privacy against error; here: variance ${digits(here.variance)}, divergence ${digits(here.value)}`);
    showLegend(here.value < Infinity);
  }

  function familyLine(f, curve) {
    const within = (value, { min, max }) => value >= min && value <= max;
    const points = curve.points.filter((p) => within(p.variance, f.x) && within(p.value, f.y));
    const current = curve.name === state.mechanism ? ' current' : '';
    const path = pathOf(points.map((p) => [f.x(p.variance), f.y(p.value)]));
    f.marks.push(`<path class="family ${curve.name}${current}" d="${path}"/>`);
    const text = (p) => [
      `${familyName(curve.name)}, ${SYMBOLS[curve.parameter]} = ${digits(p.parameter)}`,
      `variance ${digits(p.variance)}`,
      `${p.exact ? 'D' : 'D attained'} ${digits(p.value)}`,
    ].join('\n');
    f.points.push(...points.map((p) => ({ px: f.x(p.variance), py: f.y(p.value), text: text(p) })));
  }

  const familyName = (name) => (name === 'rounding' ? '1-bit' : NAMES[name]);

  function showLegend(hasDot) {
    element('legend-families').innerHTML = Object.keys(NAMES).map((name) =>
      keyEntry(`family ${name}${name === state.mechanism ? ' current' : ''}`, familyName(name))).join('') +
      (hasDot ? '<span>◉ this setting</span>' : '<span>this setting is off the scale: D is infinite</span>');
  }

  // -- drawing, at once and later -----------------------------------------------------------------

  let frameAsked = false;
  let [lastJob, lastAlpha] = ['', NaN]; // JSON has no infinity, so the order is kept apart
  const results = {}; // the last answers of the worker, by kind

  function refresh() {
    showControls();
    writeHash();
    document.body.dataset.busy = 'true';
    if (frameAsked) return;
    frameAsked = true;
    requestAnimationFrame(() => {
      frameAsked = false;
      draw();
    });
  }

  /** All that fits into a frame; the worker answers with the rest. */
  function draw() {
    const mech = rqm.mechanism(parameters());
    drawLaw(mech);
    drawVariance(mech);
    const job = { mechanism: parameters(), n: state.n, alpha: state.alpha };
    if (JSON.stringify(job) === lastJob && state.alpha === lastAlpha) { // only x has moved
      document.body.dataset.busy = String(answered < asked);
      return;
    }
    [lastJob, lastAlpha] = [JSON.stringify(job), state.alpha];
    const quick = { ...rqm.PASSES[0], grid };
    const cheap = rqm.work(mech, state.n, rqm.ORDERS.length) <= quick.budget || rqm.hasNoPrivacy(mech);
    for (const id of ['numbers', 'plot-orders', 'plot-clients', 'plot-families']) stale(id, true);
    if (cheap) receive('orders', rqm.byOrder(mech, state.n, quick));
    if (cheap || rqm.gridBound(grid, mech, state.n, state.alpha)) {
      receive('numbers', rqm.known(mech, state.n, [state.alpha], quick)[0]);
    }
    ask(job);
  }

  function stale(id, is) {
    element(id).closest('.card').classList.toggle('stale', is);
  }

  const RECEIVERS = {
    numbers: (value, mech) => showNumbers(mech, value),
    orders: (value) => drawOrders(value),
    clients: (value) => drawClients(value),
    families: (value, mech) => drawFamilies(value, mech, results.numbers),
  };

  function receive(kind, value) {
    results[kind] = value;
    RECEIVERS[kind](value, rqm.mechanism(parameters()));
    stale(kind === 'numbers' ? 'numbers' : `plot-${kind}`, false);
  }

  // -- the worker -----------------------------------------------------------------------------------

  /** Runs in the worker, or in the page where there is none: answers the last job, forgets those before it. */
  function server(answer, values) {
    let latest = 0;
    return async function serve({ id, job }) {
      latest = id;
      let paused = performance.now();
      for (const part of globalThis.rqm.heavy(job, values)) {
        if (part) answer({ id, part });
        if (performance.now() - paused > 25) { // let a newer job in
          await new Promise((resume) => { setTimeout(resume, 0); });
          paused = performance.now();
        }
        if (latest !== id) return;
      }
      answer({ id, part: ['done', null] });
    };
  }

  function startWorker() {
    try {
      const text = `${element('law').textContent}
        const serve = (${server})(postMessage, ${element('grid').textContent});
        onmessage = (event) => serve(event.data);`;
      const worker = new Worker(URL.createObjectURL(new Blob([text], { type: 'text/javascript' })));
      worker.onmessage = (event) => hear(event.data);
      worker.onerror = () => { // refused after all
        send = server(hear, grid);
        if (lastAsked) send(lastAsked);
      };
      return (message) => worker.postMessage(message);
    } catch { // some browsers allow no workers in a local file
      return server(hear, grid);
    }
  }

  let [asked, answered] = [0, 0]; // the last job, and the last that was finished
  let lastAsked = null;
  let send = null;

  function ask(job) {
    asked += 1;
    send ??= startWorker();
    lastAsked = { id: asked, job };
    send(lastAsked);
  }

  function hear({ id, part: [kind, value] }) {
    if (id !== asked) return;
    if (kind !== 'done') {
      receive(kind, value);
      return;
    }
    answered = id;
    if (!frameAsked) document.body.dataset.busy = 'false';
  }

  // -- theme, buttons and the start -----------------------------------------------------------------

  const preferred = matchMedia('(prefers-color-scheme: dark)');
  let chosenTheme = null;

  function showTheme() {
    const theme = chosenTheme ?? (preferred.matches ? 'dark' : 'light');
    document.documentElement.dataset.theme = theme;
    element('theme').setAttribute('aria-pressed', theme === 'dark');
    element('theme').textContent = theme === 'dark' ? 'Light' : 'Dark';
    element('theme').setAttribute('aria-label', `Change to ${theme === 'dark' ? 'light' : 'dark'} colours`);
  }

  async function copyLink() {
    const link = location.href.replace(/#.*$/, '') + toHash();
    history.replaceState(null, '', toHash());
    const button = element('copy');
    try {
      await navigator.clipboard.writeText(link);
      button.textContent = 'Copied';
    } catch { // no permission: the address bar holds the same link
      button.textContent = 'In the address bar';
    }
    setTimeout(() => { button.textContent = 'Copy link'; }, 1600);
  }

  /** Draw a plot whose room has changed. */
  function redraw(id) {
    const mech = rqm.mechanism(parameters());
    const kind = id.replace('plot-', '');
    if (kind === 'law') drawLaw(mech);
    else if (kind === 'variance') drawVariance(mech);
    else if (results[kind]) RECEIVERS[kind](results[kind], mech);
  }

  function watchPlots() {
    const observer = new ResizeObserver((entries) => requestAnimationFrame(() => {
      for (const { target } of entries) {
        const f = figures[target.id];
        if (f && (f.width !== target.clientWidth || f.height !== target.clientHeight)) redraw(target.id);
      }
    }));
    for (const host of document.querySelectorAll('.plot')) {
      observer.observe(host);
      host.addEventListener('pointermove', point);
      host.addEventListener('pointerdown', point);
      host.addEventListener('pointerleave', unpoint);
    }
  }

  function start() {
    makeControls();
    element('keeps').addEventListener('input', editKeep);
    element('controls').addEventListener('submit', (event) => event.preventDefault());
    element('copy').addEventListener('click', copyLink);
    element('reset').addEventListener('click', () => {
      window.rqmUserForm.reset();
      change({ ...DEFAULTS });
    });
    window.rqmUserForm.onChange(writeHash);
    element('theme').addEventListener('click', () => {
      chosenTheme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
      showTheme();
    });
    preferred.addEventListener('change', showTheme);
    window.addEventListener('hashchange', () => {
      if (location.hash === toHash()) return;
      fromHash(location.hash);
      refresh();
    });
    watchPlots();
    showTheme();
    fromHash(location.hash);
    refresh();
  }

  start();
})();
