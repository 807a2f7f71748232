'use strict';
const element = (id) => document.getElementById(id);

/** Four significant digits. */
function shown(value) {
  if (value === 0 || (value >= 1e-3 && value < 1e7)) return Number(value.toPrecision(4)).toLocaleString('en', { maximumSignificantDigits: 4 });
  return Number(value.toPrecision(4)).toExponential();
}

// -- Gaussian noise -----------------------------------------------------------------------------

/** exp(z²) erfc(z) for z ≥ 0: a series for small z, a continued fraction otherwise. */
function scaledErfc(z) {
  if (z >= 2) {
    let fraction = z;
    for (let k = 160; k > 0; k--) fraction = z + k / 2 / fraction;
    return 1 / (Math.sqrt(Math.PI) * fraction);
  }
  let [term, sum] = [z, z];
  for (let k = 1; term > 1e-18 * sum; k++) {
    term *= (2 * z * z) / (2 * k + 1);
    sum += term;
  }
  return Math.exp(z * z) - (2 / Math.sqrt(Math.PI)) * sum;
}

/** The smallest δ with which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable (Balle and Wang 2018, Theorem 8). */
function gaussianDelta(mu, epsilon) {
  const [a, b] = [mu / 2 - epsilon / mu, mu / 2 + epsilon / mu].map((value) => value / Math.SQRT2);
  const scale = Math.exp(-a * a) / 2;
  const first = a < 0 ? scale * scaledErfc(-a) : 1 - scale * scaledErfc(a);
  return first - scale * scaledErfc(b);
}

/** The largest μ that is (ε, δ)-private. */
function gaussianMu(epsilon, delta) {
  let [low, high] = [0, 1];
  while (gaussianDelta(high, epsilon) <= delta) high *= 2;
  for (let k = 0; k < 100; k++) {
    const middle = (low + high) / 2;
    if (gaussianDelta(middle, epsilon) <= delta) low = middle;
    else high = middle;
  }
  return low;
}

/** The noise of a guarantee; lengths are in L2 clips. */
function noiseFor({ epsilon, delta, clients, honest, participations, dim, bits }) {
  const honestStd = (2 * Math.sqrt(participations)) / gaussianMu(epsilon, delta);
  const std = honestStd * Math.sqrt(clients / honest);
  const coordinates = 2 ** Math.ceil(Math.log2(dim)); // after the rotation
  const coordinateClip = Math.min(4, Math.sqrt(coordinates)) / Math.sqrt(coordinates);
  const sumBits = (BigInt(clients) * BigInt(2 ** bits - 1)).toString(2).length;
  return {
    honestStd,
    std,
    meanNorm: (std * Math.sqrt(coordinates)) / clients,
    coordinateStd: std / clients,
    margin: honestStd / (coordinateClip * Math.sqrt(honest)) - 1,
    coordinates,
    sumBits,
    bytes: (coordinates * sumBits) / 8,
  };
}

// -- the form -----------------------------------------------------------------------------------

const noiseInputs = [...element('noise-form').querySelectorAll('input')];

function noiseRows(request, noise) {
  const margin = noise.margin > 0 ? `margin Δ = ${shown(noise.margin)} clips` : 'has more noise than needed';
  const rows = [
    ['noise of the sum, from honest clients', `${shown(noise.honestStd)} L2 clips`],
    ['noise of the sum, from all clients', `${shown(noise.std)} L2 clips`],
    ['noise of the mean vector over its largest norm', shown(noise.meanNorm)],
    ['noise of one coordinate of the mean', `${shown(noise.coordinateStd)} L2 clips`],
    ['bits per coordinate under secure aggregation', String(noise.sumBits)],
    ['bytes per client and round', shown(noise.bytes)],
  ];
  return request.bits === 1 ? [...rows, ['stochastic rounding with this noise', margin]] : rows;
}

function tableHtml(rows) {
  return rows.map(([name, ...values]) => `<tr><th>${name}</th>${values.map((value) => `<td>${value}</td>`).join('')}</tr>`).join('');
}

function updateNoise() {
  const request = Object.fromEntries(noiseInputs.map((input) => [input.id, Number(input.value)]));
  element('honest').setCustomValidity(request.honest > request.clients ? 'must be at most the clients per round' : '');
  element('participations').setCustomValidity(request.participations > request.rounds ? 'must be at most the rounds' : '');
  const invalid = noiseInputs.find((input) => !input.validity.valid);
  element('answer').hidden = Boolean(invalid);
  element('refusal').hidden = !invalid;
  if (invalid) {
    element('refusal').textContent = `${invalid.parentElement.textContent.trim()}: ${invalid.validationMessage}`;
    return;
  }
  const noise = noiseFor(request);
  element('odds').textContent = `An event is at most e^ε = ${shown(Math.exp(request.epsilon))} times as likely with a user's data
    as with other data, except with probability δ = ${shown(request.delta)}.`;
  element('noise-table').innerHTML = tableHtml(noiseRows(request, noise));
  const factors = [1, 10, 100].filter((factor) => request.clients * factor <= Number.MAX_SAFE_INTEGER);
  element('growth-table').innerHTML = tableHtml([['clients', 'noise of the mean vector'], ...factors.map((factor) => {
    const larger = { ...request, clients: request.clients * factor, honest: request.honest * factor };
    return [shown(larger.clients), shown(noiseFor(larger).meanNorm)];
  })]);
  const options = { clients: request.clients, 'honest-clients': request.honest, dim: noise.coordinates, rounds: request.rounds,
    'max-participations': request.participations, epsilon: request.epsilon, delta: request.delta };
  element('command').textContent = `rqm advise ${Object.entries(options).map(([name, value]) => `--${name} ${value}`).join(' ')}`;
}

element('noise-form').addEventListener('click', ({ target }) => {
  if (!target.dataset.preset) return;
  for (const [id, value] of Object.entries(JSON.parse(target.dataset.preset))) element(id).value = value;
  element('noise-form').dispatchEvent(new Event('input', { bubbles: true }));
});
element('noise-form').addEventListener('input', updateNoise);
