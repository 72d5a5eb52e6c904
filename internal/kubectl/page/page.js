// SPDX-License-Identifier: Apache-2.0

// The page shows what the server sends: first everything, then the nodes that have changed.

const $ = (id) => document.getElementById(id);
const nodes = new Map(); // name → {gpus, problem} as the server sends it
const sections = new Map(); // name → element
let pending = [];
let focused = null; // the card that the Tab key reaches

// element returns an element with this text.
function element(name, className, text) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// size returns bytes as kubectl gpu ls writes them.
function size(bytes) {
  if (bytes < 2 ** 30) return bytes ? `${Math.floor(bytes / 2 ** 20)}Mi` : '0';
  return `${(bytes / 2 ** 30).toFixed(1).replace(/\.0$/, '')}Gi`;
}

// hue returns a colour for the text: always the same one, and never red, which means trouble.
function hue(text) {
  let hash = 0;
  for (const c of text) hash = (hash * 31 + c.codePointAt(0)) >>> 0;
  return 40 + ((hash * 137) % 280);
}

const claimOf = (holder) => `${holder.namespace}/${holder.claim}`;
const share = (holder) => holder.profile || (holder.whole ? 'all of it' : size(holder.memory));
const taintOf = (t) => `${t.key}${t.value ? `=${t.value}` : ''}:${t.effect}`;
const problemsOf = (gpu) => (gpu.taints || []).map(taintOf);
const isTainted = (gpu) => (gpu.taints || []).some((t) => t.effect !== 'None');

const held = (gpu) => (gpu.holders || []).map((h) => `${claimOf(h)} ${share(h)}`);

// label describes a GPU in words, for screen readers and as a tooltip.
function label(gpu) {
  const used = gpu.memory.used === undefined ? 'unknown' : size(gpu.memory.used);
  const parts = [`${gpu.name} on ${gpu.node || gpu.pool}, ${gpu.model || 'unknown model'}`,
    `memory ${used} of ${size(gpu.memory.total)} held`];
  if (held(gpu).length) parts.push(`by ${held(gpu).join(', ')}`);
  return parts.concat(problemsOf(gpu).map((t) => `taint ${t}`)).join('; ');
}

const byClaim = () => $('colours').value === 'claim';

// pixelsPerGi is the width of one GiB, so that cards are drawn to their memory.
const pixelsPerGi = 2.2;

function card(gpu) {
  const button = element('button', isTainted(gpu) ? 'gpu tainted' : 'gpu');
  button.type = 'button';
  button.tabIndex = -1;
  button.gpu = gpu;
  button.setAttribute('aria-label', label(gpu));
  button.title = label(gpu);
  button.style.width = `${Math.max(72, Math.round((gpu.memory.total / 2 ** 30) * pixelsPerGi))}px`;
  const memory = element('div', 'memory');
  for (const h of gpu.holders || []) memory.append(segment(gpu, h));
  for (const p of gpu.partitions || []) if (p.free) memory.append(element('i', 'partition free'));
  button.append(memory, element('span', '', gpu.model || gpu.name));
  if (held(gpu).length) button.append(element('span', 'held', held(gpu).join(', ')));
  for (const t of problemsOf(gpu)) button.append(element('span', 'taint', t));
  return button;
}

function segment(gpu, holder) {
  const part = element('i', holder.profile ? 'partition' : '');
  part.style.width = `${(100 * holder.memory) / gpu.memory.total}%`;
  part.style.setProperty('--hue', hue(byClaim() ? claimOf(holder) : holder.namespace));
  return part;
}

// keeps reports whether the filters select the GPU.
function keeps(gpu) {
  const namespace = $('namespace').value;
  return (!$('model').value || gpu.model === $('model').value) &&
    (gpu.node || gpu.pool).includes($('node').value.trim()) &&
    (!namespace || (gpu.holders || []).some((h) => h.namespace === namespace));
}

// draw fills the section of a node and returns it. It is hidden if the filters select none of its GPUs.
function draw(name) {
  const node = nodes.get(name);
  let section = sections.get(name);
  if (!section) {
    section = element('section', 'node');
    section.setAttribute('aria-label', `Node ${name}`);
    sections.set(name, section);
  }
  const hadFocus = focused && section.contains(focused) ? focused.gpu.name : null;
  const title = element('h2', '', name);
  if (node.problem) title.append(' ', element('small', '', node.problem));
  const cards = element('div', 'cards');
  const shown = node.gpus.filter(keeps);
  cards.append(...shown.map(card));
  const active = hadFocus && document.activeElement === focused;
  section.replaceChildren(title, cards);
  section.hidden = shown.length === 0;
  if (hadFocus) {
    const again = [...cards.children].find((c) => c.gpu.name === hadFocus);
    focusable(again || document.querySelector('.gpu'), false);
    if (active && again) again.focus({ preventScroll: true });
  }
  return section;
}

// batch is how many nodes are drawn at once. The first batch fills a screen.
const batch = 40;
let drawing = 0; // of the newest drawing of all nodes

// drawAll draws all nodes in order, without blocking the page.
function drawAll() {
  const current = ++drawing;
  const names = [...nodes.keys()].sort();
  for (const [name, section] of sections) {
    if (!nodes.has(name)) {
      section.remove();
      sections.delete(name);
    }
  }
  const next = (start) => {
    if (current !== drawing) return;
    const active = focused && document.activeElement === focused;
    $('nodes').append(...names.slice(start, start + batch).map(draw));
    if (active && focused) focused.focus({ preventScroll: true }); // elements that move lose the focus
    if (start === 0) performance.mark('first card');
    if (!focused || !focused.isConnected) focusable(document.querySelector('.gpu'), false);
    if (start + batch < names.length) setTimeout(next, 0, start + batch);
    else {
      document.documentElement.dataset.drawn = names.length;
      performance.mark('all cards');
    }
  };
  next(0);
  summarize();
}

function summarize() {
  let all = 0;
  let shown = 0;
  let free = 0;
  let unknown = false;
  for (const node of nodes.values()) {
    for (const gpu of node.gpus) {
      all++;
      if (!keeps(gpu)) continue;
      shown++;
      if (gpu.memory.used === undefined) unknown = true;
      if (gpu.memory.used === 0 && !(gpu.holders || []).length && !isTainted(gpu) && !node.problem) free++;
    }
  }
  const text = `${shown} of ${all} GPUs on ${nodes.size} nodes, ${unknown ? '?' : free} of them free`;
  if ($('summary').textContent !== text) $('summary').textContent = text;
}

// choices updates the models and namespaces of the filters.
function choices() {
  const models = new Set();
  const namespaces = new Set();
  for (const node of nodes.values()) {
    for (const gpu of node.gpus) {
      if (gpu.model) models.add(gpu.model);
      for (const h of gpu.holders || []) namespaces.add(h.namespace);
    }
  }
  for (const [id, values] of [['model', models], ['namespace', namespaces]]) {
    const select = $(id);
    if (select.value) values.add(select.value); // what is selected stays
    const old = [...select.options].slice(1).map((o) => o.value);
    const want = [...values].sort();
    if (old.join('\n') === want.join('\n')) continue;
    const selected = select.value;
    select.replaceChildren(select.options[0], ...want.map((v) => new Option(v, v)));
    select.value = selected;
  }
}

const items = new Map(); // pending claim → its element, with what the server has answered

function drawPending() {
  const wanted = $('namespace').value;
  const shown = pending.filter((c) => !wanted || c.namespace === wanted);
  $('pending').hidden = shown.length === 0;
  $('pending').querySelector('summary').textContent = `pending claims: ${shown.length}`;
  const keys = new Set(pending.map(keyOf));
  for (const [key, item] of items) {
    if (keys.has(key)) continue;
    watcher.unobserve(item);
    visible.delete(item);
    items.delete(key);
  }
  const elements = shown.map(pendingItem);
  const list = $('pending').querySelector('ul');
  if (list.children.length !== elements.length || elements.some((e, i) => e !== list.children[i])) {
    list.replaceChildren(...elements);
  }
  askReasons();
}

const keyOf = (c) => `${c.namespace}/${c.name} ${c.created}`;

function pendingItem(claim) {
  let item = items.get(keyOf(claim));
  if (item) return item;
  item = element('li', '', `${claim.namespace}/${claim.name}, since ${new Date(claim.created).toLocaleString()}, ` +
    `asks for ${claim.classes.join(', ')}`);
  item.append(element('p', 'reason', '…'));
  item.claim = claim;
  item.asked = -Infinity;
  items.set(keyOf(claim), item);
  watcher.observe(item);
  return item;
}

// Why claims wait is only asked for those that can be seen, one at a time, and again when the answer is old.
const visible = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const e of entries) {
    if (e.isIntersecting) visible.add(e.target);
    else visible.delete(e.target);
  }
  askReasons();
});
const reasonAge = 30000; // milliseconds
let asking = false;

async function askReasons() {
  if (asking) return;
  asking = true;
  const next = () => [...visible].find((i) => i.isConnected && performance.now() - i.asked > reasonAge);
  for (let item = next(); item; item = next()) {
    item.asked = performance.now();
    const reason = item.querySelector('.reason');
    try {
      const { namespace, name } = item.claim;
      const response = await fetch(`why?${new URLSearchParams({ namespace, name })}`);
      reason.textContent = (await response.text()).trim();
    } catch {
      reason.textContent = 'no answer: is kubectl gpu ui still running?';
    }
  }
  asking = false;
}

// shownColours is how many namespaces the legend has.
const shownColours = 20;

// drawLegend shows the colours of namespaces. Those of claims are too many.
function drawLegend() {
  const names = byClaim() ? [] : [...$('namespace').options].slice(1).map((o) => o.value);
  const entries = names.slice(0, shownColours).map((name) => {
    const entry = element('li', '', name);
    const colour = element('i');
    colour.style.setProperty('--hue', hue(name));
    entry.prepend(colour);
    return entry;
  });
  if (names.length > shownColours) entries.push(element('li', '', `and ${names.length - shownColours} more`));
  $('legend').replaceChildren(...entries);
}

// receive applies a message of the server.
function receive(message) {
  for (const [name, node] of Object.entries(message.nodes || {})) {
    if (node) nodes.set(name, node);
    else nodes.delete(name);
  }
  if (message.pending) pending = message.pending;
  const problems = message.unread;
  if (problems) {
    $('unread').hidden = problems.length === 0;
    const list = $('unread').querySelector('ul');
    if ([...list.children].map((e) => e.textContent).join('\n') !== problems.join('\n')) { // a change is read aloud
      list.replaceChildren(...problems.map((p) => element('li', '', p)));
    }
  }
  choices();
  drawLegend();
  drawPending();
  const names = Object.keys(message.nodes || {});
  if (message.full || names.some((n) => !nodes.has(n) || !sections.has(n))) drawAll();
  else {
    names.forEach(draw);
    summarize();
  }
}

// focusable makes a card the one that the Tab key reaches.
function focusable(to, move) {
  if (focused) focused.tabIndex = -1;
  focused = to;
  if (!to) return;
  to.tabIndex = 0;
  if (move) to.focus();
}

// step returns the card that an arrow key moves to.
function step(key, from) {
  const cards = [...document.querySelectorAll('.node:not([hidden]) .gpu')];
  const at = cards.indexOf(from);
  const section = from.closest('.node');
  const beside = (direction) => {
    let s = section[direction];
    while (s && s.hidden) s = s[direction];
    const column = [...section.querySelectorAll('.gpu')].indexOf(from);
    const row = s ? [...s.querySelectorAll('.gpu')] : [];
    return row[Math.min(column, row.length - 1)];
  };
  switch (key) {
    case 'ArrowRight': return cards[at + 1];
    case 'ArrowLeft': return cards[at - 1];
    case 'ArrowDown': return beside('nextElementSibling');
    case 'ArrowUp': return beside('previousElementSibling');
    case 'Home': return cards[0];
    case 'End': return cards[cards.length - 1];
    default: return null;
  }
}

function show(gpu) {
  $('details-title').textContent = `${gpu.name} on ${gpu.node || gpu.pool}`;
  const used = (a, unit) => (a.used === undefined ? 'unknown' : `${unit(a.used)} of ${unit(a.total)}`);
  const rows = [['Model', gpu.model], ['UUID', gpu.uuid], ['Driver', gpu.driver],
    ['Compute capability', gpu.computeCapability], ['Memory', used(gpu.memory, size)],
    ['Cores', used(gpu.cores, (n) => `${n}%`)], ['Node', gpu.nodeProblem],
    ['Taints', problemsOf(gpu).join(', ') || 'none'],
    ['Partitions', (gpu.partitions || []).map((p) => `${p.name}${p.free ? ' (free)' : ''}`).join(', ') || 'none']];
  $('details').querySelector('dl').replaceChildren(...rows.filter((r) => r[1])
    .flatMap(([k, v]) => [element('dt', '', k), element('dd', '', v)]));
  $('details').querySelector('tbody').replaceChildren(...(gpu.holders || []).map((h) => {
    const tr = element('tr');
    tr.append(...[claimOf(h), h.device, size(h.memory), h.cores ? `${h.cores}%` : 'no limit', (h.pods || []).join(', '),
      h.since ? new Date(h.since).toLocaleString() : '', h.problem || ''].map((text) => element('td', '', text)));
    return tr;
  }));
  $('details').querySelector('table').hidden = !(gpu.holders || []).length;
  $('details').showModal();
}

$('nodes').addEventListener('keydown', (event) => {
  const from = event.target.closest('.gpu');
  const to = from && step(event.key, from);
  if (!to) return;
  event.preventDefault();
  focusable(to, true);
});
$('nodes').addEventListener('click', (event) => {
  const button = event.target.closest('.gpu');
  if (!button) return;
  focusable(button, false);
  show(button.gpu);
});
// The card that had the focus may have been drawn again.
$('details').addEventListener('close', () => { if (focused) focused.focus({ preventScroll: true }); });
$('filters').addEventListener('submit', (event) => event.preventDefault());
$('filters').addEventListener('input', () => {
  drawAll();
  drawLegend();
  drawPending();
});

const events = new EventSource('events');
events.onopen = () => { $('connection').textContent = 'live'; };
events.onerror = () => { $('connection').textContent = 'not connected: is kubectl gpu ui still running?'; };
events.onmessage = (event) => {
  const message = JSON.parse(event.data);
  if (message.full) nodes.clear();
  receive(message);
};
