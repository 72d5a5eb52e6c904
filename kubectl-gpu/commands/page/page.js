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

// colours are far from each other and from red, which means trouble: lightness, chroma and hue of oklch.
const colours = [[62, 0.13, 250], [78, 0.14, 80], [60, 0.13, 150], [62, 0.16, 330], [75, 0.11, 200], [55, 0.17, 290],
  [82, 0.15, 115], [72, 0.13, 50], [48, 0.11, 240], [80, 0.1, 320], [50, 0.1, 170], [70, 0.05, 260]];
const colourOf = new Map(); // namespace or claim → its number, by the order in which they came

// paint gives the element the colour of the text: always the same one while the page is open.
function paint(e, text) {
  if (!colourOf.has(text)) colourOf.set(text, colourOf.size);
  const n = colourOf.get(text);
  const [light, chroma, hue] = colours[n % colours.length];
  e.style.setProperty('--light', `${light}%`);
  e.style.setProperty('--chroma', chroma);
  e.style.setProperty('--hue', (hue + 17 * Math.floor(n / colours.length)) % 360);
}

// where is the node of a GPU, or that of its server, or its pool.
const where = (gpu) => (gpu.server ? `node ${gpu.server}, over the network` : gpu.node || gpu.pool);
const isNode = (section) => section.gpus.some((g) => g.node); // else a pool
const claimOf = (holder) => `${holder.namespace}/${holder.claim}`;
const share = (holder) => holder.profile || (holder.vm ? 'vm' : holder.whole ? 'all of it' : size(holder.memory));
const taintOf = (t) => `${t.key}${t.value ? `=${t.value}` : ''}:${t.effect}`;
const isTainted = (gpu) => (gpu.taints || []).some((t) => t.effect !== 'None');
const isReservation = (t) => t.key === 'gpu.nvidia.com/reserved' && t.effect !== 'None'; // kubectl gpu reserve
const isHold = (t) => t.key === 'gpu.nvidia.com/preemption' && t.effect !== 'None';
const isKept = (gpu) => (gpu.taints || []).some((t) => isReservation(t) || isHold(t));
const isSick = (gpu) => (gpu.taints || []).some((t) => t.effect !== 'None' && !isReservation(t) && !isHold(t));
const isHeld = (gpu) => (gpu.holders || []).length > 0 || gpu.memory.used > 0;
const isFree = (gpu, node) => gpu.memory.used === 0 && !isHeld(gpu) && !isTainted(gpu) && !node.problem;
const held = (gpu) => (gpu.holders || []).map((h) => `${claimOf(h)} ${share(h)}`);

// words says what a taint means: a cause, and what follows.
function words(taint) {
  if (isReservation(taint)) return `kept for ${taint.value}`;
  if (isHold(taint)) return 'kept for a pod of higher priority';
  const spaced = (text) => text.replace(/([a-z])([A-Z])/g, '$1 $2').toLowerCase();
  const name = taint.key.replace(/^.*\//, '');
  const known = { xid: `XID${taint.value ? ` ${taint.value}` : ''}`, 'gpu-lost': 'lost', unmonitored: 'not monitored' };
  let cause = known[name] || `${name.replace(/-/g, ' ')}${taint.value ? ` ${taint.value}` : ''}`;
  if (name === 'unhealthy' && taint.value) {
    const action = taint.value.replace(/^RecoveryAction/, '');
    cause = action === taint.value ? spaced(action) : `needs: ${spaced(action)}`;
  }
  const follows = { NoSchedule: 'no new claims', NoExecute: 'no new claims, pods are evicted' }[taint.effect];
  return follows ? `${cause}: ${follows}` : cause;
}

const idle = (h) => (h.idleSince ? `idle since ${new Date(h.idleSince).toLocaleString()}` : '');
const problemsOf = (gpu) => (gpu.taints || []).map(words);

// label describes a GPU in words, for screen readers and as a tooltip.
function label(gpu) {
  const used = gpu.memory.used === undefined ? 'unknown' : size(gpu.memory.used);
  const parts = [`${gpu.name} on ${where(gpu)}, ${gpu.model || 'unknown model'}`,
    `memory ${used} of ${size(gpu.memory.total)} held`];
  if (held(gpu).length) parts.push(`by ${held(gpu).join(', ')}`);
  return parts.concat(problemsOf(gpu)).join('; ');
}

// amount is how much of a GPU is held.
function amount(gpu) {
  if (gpu.memory.used === undefined) return `? of ${size(gpu.memory.total)}`;
  const part = gpu.cores.used && gpu.memory.used < gpu.memory.total;
  const cores = part ? ` · ${gpu.cores.used}%` : '';
  return `${size(gpu.memory.used)} of ${size(gpu.memory.total)}${cores}`;
}

const byClaim = () => $('colours').value === 'claim';

// shownHolders is how many holders a card names.
const shownHolders = 4;

function card(gpu) {
  const button = element('button', isSick(gpu) ? 'gpu tainted' : 'gpu');
  button.type = 'button';
  button.tabIndex = -1;
  button.gpu = gpu;
  button.setAttribute('aria-label', label(gpu));
  button.title = label(gpu);
  const memory = element('div', 'memory');
  for (const h of gpu.holders || []) memory.append(segment(gpu, h));
  for (const p of gpu.partitions || []) if (p.free) memory.append(freePartition(gpu, p));
  const index = gpu.index === undefined ? '' : `#${gpu.index} `;
  button.append(element('span', 'name', `${index}${gpu.name}`),
    element('span', 'model', (gpu.model || 'unknown model').replace(/^NVIDIA /, '')), memory,
    element('span', 'amount', amount(gpu)));
  if (gpu.server) button.append(element('span', 'amount', `on ${where(gpu)}`));
  const holders = gpu.holders || [];
  button.append(...holders.slice(0, shownHolders).map(holderLine));
  if (holders.length > shownHolders) button.append(element('span', 'amount', `and ${holders.length - shownHolders} more`));
  for (const t of gpu.taints || []) {
    button.append(element('span', t.effect === 'None' || isReservation(t) || isHold(t) ? 'amount' : 'health', words(t)));
  }
  return button;
}

function holderLine(holder) {
  const line = element('span', 'held');
  line.append(element('b', '', claimOf(holder)), element('em', '', share(holder)));
  return line;
}

function freePartition(gpu, partition) {
  const part = element('i', 'partition free');
  part.style.width = `${(100 * (partition.memory || 0)) / gpu.memory.total}%`;
  part.title = `${partition.profile}, free`;
  return part;
}

function segment(gpu, holder) {
  const part = element('i', holder.profile ? 'partition' : '');
  part.style.width = `${(100 * holder.memory) / gpu.memory.total}%`;
  paint(part, byClaim() ? claimOf(holder) : holder.namespace);
  return part;
}

// keeps reports whether the filters select the GPU.
function keeps(gpu) {
  const namespace = $('namespace').value;
  const states = { free: isFree, held: isHeld, kept: isKept, sick: isSick };
  const inState = states[$('state').value];
  return (!inState || inState(gpu, nodes.get(gpu.node || gpu.pool))) && (!$('model').value || gpu.model === $('model').value) &&
    [gpu.node || gpu.pool, gpu.server || ''].some((n) => n.includes($('node').value.trim())) &&
    (!namespace || (gpu.holders || []).some((h) => h.namespace === namespace));
}

// draw fills the section of a node and returns it. It is hidden if the filters select none of its GPUs.
function draw(name) {
  const node = nodes.get(name);
  let section = sections.get(name);
  if (!section) {
    section = element('section', 'node');
    section.setAttribute('aria-label', `${isNode(node) ? 'Node' : 'Pool'} ${name}`);
    sections.set(name, section);
  }
  const hadFocus = focused && section.contains(focused) ? focused.gpu.name : null;
  const title = element('h2', '', name);
  if (node.problem) title.append(element('small', 'problem', node.problem));
  title.append(element('small', '', sums(node.gpus, () => node)));
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

// sums says how many of the GPUs are free, kept for somebody and sick, and how much of their memory is held.
function sums(gpus, nodeOf) {
  const unknown = gpus.some((g) => g.memory.used === undefined);
  const free = gpus.filter((g) => isFree(g, nodeOf(g))).length;
  const kept = gpus.filter(isKept).length;
  const sick = gpus.filter(isSick).length;
  const total = (of) => size(gpus.reduce((sum, g) => sum + of(g), 0));
  return `${gpus.length} GPU${gpus.length === 1 ? '' : 's'}, ${unknown ? '?' : free} free` +
    `${kept ? `, ${kept} kept` : ''}${sick ? `, ${sick} sick` : ''}, ${unknown ? '?' : total((g) => g.memory.used)} of ` +
    `${total((g) => g.memory.total)} held`;
}

function summarize() {
  const sections = [...nodes.values()];
  const all = sections.flatMap((n) => n.gpus);
  // A GPU over the network is one of its server's node, which is counted there.
  const [local, shown] = [all, all.filter(keeps)].map((gpus) => gpus.filter((g) => !g.server));
  const served = all.filter((g) => g.server && keeps(g)).length;
  const of = shown.length === local.length ? '' : ` (of ${local.length})`;
  const text = `${sums(shown, (g) => nodes.get(g.node || g.pool))}${of}, on ${sections.filter(isNode).length} nodes` +
    `${served ? `; ${served} over the network` : ''}`;
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
  $('pending').querySelector('summary').textContent = `pending claims and pods: ${shown.length}`;
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

const keyOf = (c) => `${c.kind} ${c.namespace}/${c.name} ${c.created}`;

function pendingItem(claim) {
  let item = items.get(keyOf(claim));
  if (item) return item;
  item = element('li', '', `${claim.kind} ${claim.namespace}/${claim.name}, since ` +
    `${new Date(claim.created).toLocaleString()}, asks for ${claim.asks.join(', ')}`);
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
      const { kind, namespace, name } = item.claim;
      const response = await fetch(`why?${new URLSearchParams({ kind, namespace, name })}`);
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
    paint(colour, name);
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
  $('details-title').textContent = `${gpu.name} on ${where(gpu)}`;
  const used = (a, unit) => (a.used === undefined ? 'unknown' : `${unit(a.used)} of ${unit(a.total)}`);
  const rows = [['Model', gpu.model], ['UUID', gpu.uuid], ['Driver', gpu.driver],
    ['Compute capability', gpu.computeCapability], ['Memory', used(gpu.memory, size)],
    ['Cores', used(gpu.cores, (n) => `${n}%`)], ['Node', gpu.nodeProblem],
    ['Taints', (gpu.taints || []).map((t) => `${words(t)} (${taintOf(t)})`).join(', ') || 'none'],
    ['Partitions', (gpu.partitions || []).map((p) => `${p.name}${p.free ? ' (free)' : ''}`).join(', ') || 'none']];
  $('details').querySelector('dl').replaceChildren(...rows.filter((r) => r[1])
    .flatMap(([k, v]) => [element('dt', '', k), element('dd', '', v)]));
  $('details').querySelector('tbody').replaceChildren(...(gpu.holders || []).map((h) => {
    const tr = element('tr');
    tr.append(...[claimOf(h), h.device, size(h.memory), h.cores ? `${h.cores}%` : 'no limit', (h.pods || []).join(', '),
      h.since ? new Date(h.since).toLocaleString() : '', h.problem || idle(h)].map((text) => element('td', '', text)));
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
