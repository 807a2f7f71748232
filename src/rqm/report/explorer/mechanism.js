
// -- one mechanism ------------------------------------------------------------------------------

const NAMES = { margin: 'margin Δ in clips', keep: 'probability q of keeping a level', theta: 'θ' };
const tables = JSON.parse(element('tables').textContent);

/** A chart of values at labeled positions: bars, or a line with dots. */
function chartSvg(labels, values, kind, description) {
  const [left, bottom, width, height] = [50, 170, 415, 155];
  const step = width / values.length;
  const unit = 10 ** Math.floor(Math.log10(Math.max(...values))) / 2;
  const top = unit * Math.ceil(Math.max(...values) / unit);
  const x = (index) => left + (index + 0.5) * step;
  const y = (value) => bottom - (value / top) * height;
  const text = (a, b, content, anchor) => `<text x="${a}" y="${b}" text-anchor="${anchor}" font-size="13">${content}</text>`;
  const marks = values.map((value, index) => {
    const title = `<title>${labels[index]}: ${value}</title>`;
    return kind === 'bars'
      ? `<rect x="${x(index) - 0.4 * step}" y="${y(value)}" width="${0.8 * step}" height="${bottom - y(value)}" fill="var(--s0)">${title}</rect>`
      : `<circle cx="${x(index)}" cy="${y(value)}" r="4" fill="var(--s0)">${title}</circle>`;
  });
  if (kind === 'line') {
    const points = values.map((value, index) => `${x(index)},${y(value)}`).join(' ');
    marks.push(`<polyline points="${points}" fill="none" stroke="var(--s0)" stroke-width="2"/>`);
  }
  const grid = [0, 0.5, 1].map((fraction) => {
    const value = fraction * top;
    return `<path d="M${left},${y(value)}h${width}" stroke="var(--line)"/>${text(left - 5, y(value) + 4, shown(value), 'end')}`;
  });
  const ticks = labels.map((label, index) => (labels.length < 14 || index % 3 === 0 ? text(x(index), bottom + 16, label, 'middle') : ''));
  return `<svg viewBox="0 0 470 195" role="img" aria-label="${description}">${[...grid, ...marks, ...ticks].join('')}</svg>`;
}

/** A slider for each parameter of the chosen mechanism, in the middle of its values. */
function makeSliders() {
  const { parameters } = tables.mechanisms[element('mechanism').value];
  element('parameters').innerHTML = Object.entries(parameters).map(([name, values], index) => `<label>${NAMES[name]}
    <input type="range" id="parameter-${index}" max="${values.length - 1}" value="${Math.floor(values.length / 2)}"><output></output></label>`).join('');
}

function updateMechanism() {
  const mechanism = tables.mechanisms[element('mechanism').value];
  let position = 0;
  Object.values(mechanism.parameters).forEach((values, index) => {
    const slider = element(`parameter-${index}`);
    position = position * values.length + Number(slider.value);
    slider.nextElementSibling.textContent = values[slider.value];
    slider.setAttribute('aria-valuetext', values[slider.value]);
  });
  const table = mechanism.tables[position];
  const input = Number(element('x').value);
  const pmf = [...table.pmfs[Math.abs(input)]];
  if (input < 0) pmf.reverse();
  const mean = pmf.reduce((sum, probability, level) => sum + probability * table.outputs[level], 0);
  const square = pmf.reduce((sum, probability, level) => sum + probability * table.outputs[level] ** 2, 0);
  element('x-value').textContent = input / 10;
  element('x').setAttribute('aria-valuetext', input / 10);
  element('pmf-chart').innerHTML = chartSvg(table.outputs.map((value) => Number(value.toPrecision(2))), pmf, 'bars', 'probability of each decoded value');
  element('pmf-note').firstElementChild.textContent = `standard deviation ${shown(Math.sqrt(square - mean ** 2))} clips`;
  const orders = tables.orders.map((order) => order ?? '∞');
  element('renyi-chart').innerHTML = chartSvg(orders, table.renyi, 'line', 'certified Rényi divergence by order');
  element('mechanism-table').innerHTML = tableHtml([
    ['bits per coordinate', table.bits],
    ['largest variance', `${shown(table.variance)} clip²`],
    ['D<sub>2</sub>', `≤ ${table.renyi[tables.orders.indexOf(2)]}`],
    ['ε of pure DP (D<sub>∞</sub>)', `≤ ${table.renyi.at(-1)}`],
  ]);
}

// -- links: the address holds all inputs ----------------------------------------------------------

const allInputs = () => [...document.querySelectorAll('form input, form select')];

function readAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  const restore = (input) => { if (values.has(input.id)) input.value = values.get(input.id); };
  restore(element('mechanism'));
  if (element('mechanism').selectedIndex < 0) element('mechanism').selectedIndex = 0;
  makeSliders();
  allInputs().filter((input) => input.id !== 'mechanism').forEach(restore);
  updateNoise();
  updateMechanism();
}

element('mechanism').innerHTML = tables.mechanisms.map(({ name }, index) => `<option value="${index}">${name}</option>`).join('');
element('mechanism').addEventListener('input', makeSliders);
element('mechanism-form').addEventListener('input', updateMechanism);
document.addEventListener('input', () => {
  history.replaceState(null, '', `#${new URLSearchParams(allInputs().map((input) => [input.id, input.value]))}`);
});
document.addEventListener('submit', (event) => event.preventDefault());
window.addEventListener('hashchange', readAddress);
readAddress();
