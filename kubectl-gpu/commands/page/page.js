// SPDX-License-Identifier: Apache-2.0

// The page shows what the server sends: first everything, then the nodes that have changed.

const $ = (id) => document.getElementById(id);
const nodes = new Map(); // name → {gpus, problem} as the server sends it
const sections = new Map(); // name → element
let pending = [];
let focused = null; // the card that the Tab key reaches
let complete = false; // the server has sent everything once

// element returns an element with this text.
function element(name, className, text) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// button returns a button with this text that calls click.
function button(className, text, click) {
  const e = element('button', className, text);
  e.type = 'button';
  e.addEventListener('click', click);
  return e;
}

// setText changes the text only if it is another one: what changes is read aloud.
function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// size returns bytes as kubectl gpu ls writes them.
function size(bytes) {
  if (bytes < 2 ** 30) return bytes ? `${Math.floor(bytes / 2 ** 20)}Mi` : '0';
  return `${(bytes / 2 ** 30).toFixed(1).replace(/\.0$/, '')}Gi`;
}

// time returns a time as ISO 8601 has it, in the zone of the browser, with the time since then.
function time(value) {
  if (!value) return '';
  const at = new Date(value);
  const local = new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19).replace('T', ' ');
  const minutes = Math.max(0, Math.floor((Date.now() - at) / 60000));
  const days = Math.floor(minutes / 1440);
  const hours = Math.floor(minutes / 60);
  return `${local} (${days > 1 ? `${days}d` : hours > 1 ? `${hours}h` : `${minutes}m`})`;
}

// colors are far from each other and from red, which means trouble: lightness, chroma and hue of oklch.
const colors = [[62, 0.13, 250], [78, 0.14, 80], [60, 0.13, 150], [62, 0.16, 330], [75, 0.11, 200], [55, 0.17, 290],
  [82, 0.15, 115], [72, 0.13, 50], [48, 0.11, 240], [80, 0.1, 320], [50, 0.1, 170], [70, 0.05, 260]];
const colorOf = new Map(); // namespace or claim → its number, by the order in which they came

// paint gives the element the color of the text: always the same one while the page is open.
function paint(e, text) {
  if (!colorOf.has(text)) colorOf.set(text, colorOf.size);
  const n = colorOf.get(text);
  const [light, chroma, hue] = colors[n % colors.length];
  e.style.setProperty('--light', `${light}%`);
  e.style.setProperty('--chroma', chroma);
  e.style.setProperty('--hue', (hue + 17 * Math.floor(n / colors.length)) % 360);
}

// placeOf is the node of a GPU, or its pool if it is of no single node.
const placeOf = (gpu) => gpu.node || gpu.pool;
const nodeOf = (gpu) => nodes.get(placeOf(gpu));
const where = (gpu) => (gpu.server ? `node ${gpu.server}, over the network` : placeOf(gpu));
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
const isFree = (gpu) => gpu.memory.used === 0 && !isHeld(gpu) && !isTainted(gpu) && !nodeOf(gpu).problem;
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

const problemsOf = (gpu) => (gpu.taints || []).map(words);
const keyOfGPU = (gpu) => `${placeOf(gpu)}/${gpu.name}`;

// label describes a GPU in words: the tooltip, and the name for screen readers where the card has no text.
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

const byClaim = () => $('colors').value === 'claim';

// shownHolders is how many holders a card names.
const shownHolders = 4;

function card(gpu) {
  const e = element('button', isSick(gpu) ? 'gpu tainted' : 'gpu');
  e.type = 'button';
  e.tabIndex = -1;
  e.gpu = gpu;
  e.title = label(gpu);
  const memory = element('div', 'memory');
  for (const h of gpu.holders || []) memory.append(segment(gpu, h));
  for (const p of gpu.partitions || []) if (p.free) memory.append(freePartition(gpu, p));
  const index = gpu.index === undefined ? '' : `#${gpu.index} `;
  e.append(element('span', 'name', `${index}${gpu.name}`),
    element('span', 'model', (gpu.model || 'unknown model').replace(/^NVIDIA /, '')), memory,
    element('span', 'amount', amount(gpu)));
  if (gpu.server) e.append(element('span', 'amount', `on ${where(gpu)}`));
  const holders = gpu.holders || [];
  e.append(...holders.slice(0, shownHolders).map(holderLine));
  if (holders.length > shownHolders) e.append(element('span', 'amount', `and ${holders.length - shownHolders} more`));
  for (const t of gpu.taints || []) {
    e.append(element('span', t.effect === 'None' || isReservation(t) || isHold(t) ? 'amount' : 'health', words(t)));
  }
  return e;
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

// states are the filters of GPUs and of workloads.
const states = { free: isFree, held: isHeld, kept: isKept, sick: isSick };
const workloadStates = ['waiting', 'cannot start', 'idle', 'starting', 'running'];
const manyNodes = 50; // are shown one line each, unless somebody selects cards
const showsRows = () => $('view').value === 'rows' || ($('view').value === '' && nodes.size > manyNodes);
const showsWorkloads = () => $('view').value === 'workloads';

// keeps reports whether the filters select the GPU.
function keeps(gpu) {
  const namespace = $('namespace').value;
  const inState = !showsWorkloads() && states[$('state').value];
  return (!inState || inState(gpu)) && (!$('model').value || gpu.model === $('model').value) &&
    [placeOf(gpu), gpu.server || ''].some((n) => n.includes($('node').value.trim())) &&
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
    onScreen.observe(section);
  }
  section.name = name;
  const hadFocus = focused && section.contains(focused) ? focused.gpu.name : null;
  const shown = node.gpus.filter(keeps);
  const title = element('h2', '', name);
  if (node.problem) title.append(element('small', 'problem', node.problem));
  const of = shown.length === node.gpus.length ? '' : ` (of ${node.gpus.length})`;
  title.append(element('small', '', sums(shown) + of));
  const cards = element('div', 'cards');
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

// ordered returns the names of the nodes in the order that is selected.
function ordered() {
  const first = states[$('order').value || 'sick'];
  const names = [...nodes.keys()].sort();
  if (!first) return names;
  const counts = new Map(names.map((n) => [n, nodes.get(n).gpus.filter(first).length]));
  return names.sort((a, b) => counts.get(b) - counts.get(a)); // sort is stable
}

// reorder moves nodes whose changes have changed the order. While all are drawn, some have no section yet.
function reorder() {
  const want = ordered().map((n) => sections.get(n));
  const now = $('nodes').children;
  if (want.length !== now.length || want.every((s, i) => s === now[i])) return;
  const active = focused && document.activeElement === focused;
  $('nodes').append(...want);
  if (active) focused.focus({ preventScroll: true });
}

// batch is how many nodes are drawn at once. The first batch fills a screen.
const batch = 40;
let drawing = 0; // of the newest drawing of all nodes

// drawAll draws all nodes in order, without blocking the page.
function drawAll() {
  $('nodes').classList.toggle('rows', showsRows());
  const current = ++drawing;
  const names = ordered();
  for (const [name, section] of sections) {
    if (!nodes.has(name)) {
      onScreen.unobserve(section);
      seenNodes.delete(name);
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
function sums(gpus) {
  const unknown = gpus.some((g) => g.memory.used === undefined);
  const free = gpus.filter(isFree).length;
  const kept = gpus.filter(isKept).length;
  const sick = gpus.filter(isSick).length;
  const total = (of) => {
    const bytes = gpus.reduce((sum, g) => sum + of(g), 0);
    return bytes < 2 ** 43 ? size(bytes) : `${(bytes / 2 ** 40).toFixed(1)}Ti`;
  };
  return `${gpus.length} GPU${gpus.length === 1 ? '' : 's'}, ${unknown ? '?' : free} free` +
    `${kept ? `, ${kept} kept` : ''}${sick ? `, ${sick} sick` : ''}, ${unknown ? '?' : total((g) => g.memory.used)} of ` +
    `${total((g) => g.memory.total)} held`;
}

// summarize writes the numbers of the header, and says so when nothing is shown.
function summarize() {
  // A GPU over the network is one of its server's node, which is counted there.
  const all = [...nodes.values()].flatMap((n) => n.gpus);
  const local = all.filter((g) => !g.server);
  const shown = local.filter(keeps);
  const served = all.filter((g) => g.server && keeps(g)).length;
  const on = new Set(shown.map(placeOf)).size;
  const of = shown.length === local.length ? '' : ` (of ${local.length})`;
  setText($('summary'), `${sums(shown)}${of}, on ${on} node${on === 1 ? '' : 's'}` +
    `${served ? `; ${served} over the network` : ''}`);
  const unknown = local.some((g) => g.memory.used === undefined);
  const numbers = { '': local.length, free: unknown ? '?' : local.filter(isFree).length,
    sick: local.filter(isSick).length, waiting: pending.filter((p) => !p.node).length };
  for (const tile of $('tiles').children) {
    const state = tile.dataset.state;
    setText(tile.firstChild, `${numbers[state]}`);
    tile.classList.toggle('alarm', (state === 'sick' || state === 'waiting') && numbers[state] > 0);
    tile.setAttribute('aria-pressed', $('state').value === state && showsWorkloads() === (state === 'waiting'));
  }
  const nothing = showsWorkloads() ? !$('workloads').tBodies[0].rows.length : !shown.length && !served;
  $('empty').hidden = !nothing;
  if (!nothing || !complete) return;
  setText($('empty'), !all.length ? 'No GPU is published. kubectl get pods -A shows whether the plugins of the driver run.' :
    showsWorkloads() ? 'No workload has GPUs or waits for them, or the filters select none.' :
      'No GPU matches the filters: Clear shows all.');
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

// workloads returns the pods and claims that have GPUs or wait for them: what needs somebody first.
function workloads() {
  const claims = new Map();
  const starting = new Map(pending.filter((p) => p.node).map((p) => [`${p.namespace}/${p.name}`, p]));
  const seen = new Set(); // the starting pods whose claims have GPUs
  for (const node of nodes.values()) {
    for (const gpu of node.gpus) {
      for (const h of gpu.holders || []) {
        const name = claimOf(h);
        const w = claims.get(name) || { key: name, namespace: h.namespace, name, pods: h.pods || [], has: [], gpus: [],
          since: h.since, state: 'running', notes: [] };
        claims.set(name, w);
        w.has.push(share(h));
        if (!w.gpus.includes(gpu)) w.gpus.push(gpu);
        const pod = w.pods.map((p) => `${h.namespace}/${p}`).find((p) => starting.has(p));
        if (h.problem) [w.state, w.notes] = ['cannot start', [...new Set(w.notes.concat(h.problem))]];
        else if (w.state === 'running' && h.idleSince) [w.state, w.notes] = ['idle', [`idle since ${time(h.idleSince)}`]];
        if (!pod) continue;
        seen.add(pod);
        w.pending = starting.get(pod);
        if (w.state !== 'cannot start') [w.state, w.notes] = ['starting', []];
      }
    }
  }
  const others = pending.filter((p) => !seen.has(`${p.namespace}/${p.name}`) || p.kind !== 'pod').map((p) => ({ key: keyOf(p),
    namespace: p.namespace, name: `${p.namespace}/${p.name}`, pods: p.kind === 'pod' ? [p.name] : [], kind: p.kind, has: p.asks,
    gpus: [], since: p.created, state: p.node ? 'starting' : 'waiting', notes: [], pending: p }));
  return [...others, ...claims.values()];
}

// shownWorkloads is how many rows the table has at most.
const shownWorkloads = 1000;
const rows = new Map(); // key of a workload → its row
let listed = []; // the workloads of the rows

function drawWorkloads() {
  const [state, namespace, model, node] = ['state', 'namespace', 'model', 'node'].map((id) => $(id).value.trim());
  const selected = !showsWorkloads() ? [] : workloads().filter((w) => (!state || w.state === state) &&
    (!namespace || w.namespace === namespace) && (!model || w.gpus.some((g) => g.model === model)) &&
    (!node || w.gpus.some((g) => placeOf(g).includes(node))));
  const before = (a, b) => (a < b ? -1 : Number(a > b));
  const rank = (w) => workloadStates.indexOf(w.state);
  selected.sort((a, b) => rank(a) - rank(b) || before(a.since || '', b.since || '') || before(a.name, b.name));
  listed = selected.slice(0, shownWorkloads);
  const keys = new Set(listed.map((w) => w.key));
  for (const [key, row] of rows) {
    if (keys.has(key)) continue;
    unwatch(row);
    rows.delete(key);
  }
  const elements = listed.map(workloadRow);
  if (selected.length > shownWorkloads) {
    const more = element('tr');
    more.append(element('td', '', `and ${selected.length - shownWorkloads} more: select a namespace or a state`));
    elements.push(more);
  }
  const body = $('workloads').tBodies[0];
  if (body.rows.length !== elements.length || elements.some((e, i) => e !== body.rows[i])) body.replaceChildren(...elements);
  askReasons();
}

const keyOf = (c) => `${c.kind} ${c.namespace}/${c.name} ${c.created}`;

function newRow() {
  const row = element('tr');
  row.append(...['', '', '', '', '', 'since'].map((name) => element('td', name)));
  row.cells[1].append(element('span'), element('p', 'note'), element('p', 'reason'));
  labelCells(row, ['State', 'Workload', 'Has or asks for', 'GPU', 'Use', 'Since']);
  return row;
}

// workloadRow returns the row of a workload, as it is now. It is the same one while the workload is listed.
function workloadRow(w) {
  const row = rows.get(w.key) || newRow();
  rows.set(w.key, row);
  const [state, what, has, gpus, use, since] = row.cells;
  const kinds = { waiting: 'waiting', 'cannot start': 'broken', idle: 'idle', starting: 'starting' };
  state.className = `state ${kinds[w.state] || ''}`;
  setText(state, w.state);
  setText(what.children[0], w.pods.length && !w.kind ? `${w.name}: ${w.pods.join(', ')}` : `${w.kind || 'claim'} ${w.name}`);
  setText(what.children[1], w.notes.join('\n'));
  setText(has, [...new Set(w.has)].join(', '));
  const names = w.gpus.map(keyOfGPU);
  if (gpus.dataset.names !== names.join()) {
    gpus.dataset.names = names.join();
    gpus.replaceChildren(...names.flatMap((n) => [button('link', n, () => { if (find(n)) open(find(n)); }), ' ']));
  }
  setText(use, useText(w));
  setText(since, time(w.since));
  if (w.pending && !row.claim) {
    setText(what.children[2], '…');
    row.asked = -Infinity;
    watcher.observe(row);
  } else if (!w.pending && row.claim) {
    setText(what.children[2], '');
    unwatch(row);
  }
  row.claim = w.pending;
  return row;
}

function unwatch(row) {
  watcher.unobserve(row);
  visible.delete(row);
}

// labelCells gives cells the heads of their columns, for narrow screens, which do not show the head.
const labelCells = (row, heads) => [...row.cells].forEach((c, i) => { c.dataset.label = heads[i]; });

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

// shownColors is how many namespaces the legend has.
const shownColors = 20;

// drawLegend shows the colors of namespaces. Those of claims are too many.
function drawLegend() {
  const names = byClaim() ? [] : [...$('namespace').options].slice(1).map((o) => o.value);
  const entries = names.slice(0, shownColors).map((name) => {
    const entry = element('li', '', name);
    const color = element('i');
    paint(color, name);
    entry.prepend(color);
    return entry;
  });
  if (names.length > shownColors) entries.push(element('li', '', `and ${names.length - shownColors} more`));
  $('legend').replaceChildren(...entries);
}

// A pool is incomplete for a moment whenever its slices change.
const settles = 3000; // milliseconds
const missing = new Map(); // what is missing → since when
let problems = [];
let settling = 0; // the timer of the next look

function drawMissing() {
  clearTimeout(settling);
  const now = performance.now();
  for (const p of missing.keys()) if (!problems.includes(p)) missing.delete(p);
  for (const p of problems) if (!missing.has(p)) missing.set(p, now);
  const isNew = (p) => p.includes(' slices of the pool ') && now - missing.get(p) < settles;
  const shown = problems.filter((p) => !isNew(p));
  if (shown.length < problems.length) settling = setTimeout(drawMissing, settles);
  $('unread').hidden = shown.length === 0;
  const list = $('unread').querySelector('ul');
  if ([...list.children].map((e) => e.textContent).join('\n') !== shown.join('\n')) { // a change is read aloud
    list.replaceChildren(...shown.map((p) => element('li', '', p)));
  }
}

// receive applies a message of the server.
function receive(message) {
  complete = true;
  for (const [name, node] of Object.entries(message.nodes || {})) {
    if (node) nodes.set(name, node);
    else nodes.delete(name);
  }
  if (message.pending) pending = message.pending;
  if (message.unread) problems = message.unread;
  drawMissing();
  choices();
  drawLegend();
  drawWorkloads();
  const names = Object.keys(message.nodes || {});
  if (message.full || names.some((n) => !nodes.has(n) || !sections.has(n))) drawAll();
  else {
    names.forEach(draw);
    reorder();
    summarize();
  }
  if ($('details').open) follow();
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

let opened = ''; // the GPU of the dialog: NODE/NAME
let shownGPU = null; // as it is in the dialog

// open shows a GPU in the dialog.
function open(gpu) {
  opened = keyOfGPU(gpu);
  show(gpu);
  if (!$('details').open) $('details').showModal();
  writeAddress();
  askUse();
}

const find = (key) => [...nodes.values()].flatMap((n) => n.gpus).find((g) => keyOfGPU(g) === key);

// follow keeps the dialog as the GPU is. One that has not changed keeps the focus and what is selected.
function follow() {
  const gpu = find(opened);
  if (gpu === shownGPU) return;
  if (gpu) show(gpu);
  else setText($('details-title'), `${opened} is not published any more`);
}

function show(gpu) {
  shownGPU = gpu;
  setText($('details-title'), `${gpu.name} on ${where(gpu)}`);
  const used = (a, unit) => (a.used === undefined ? 'unknown' : `${unit(a.used)} of ${unit(a.total)}`);
  const rows = [['Model', gpu.model], ['UUID', gpu.uuid], ['Driver', gpu.driver],
    ['Compute capability', gpu.computeCapability], ['Memory', `${used(gpu.memory, size)} held`],
    ['Cores', `${used(gpu.cores, (n) => `${n}%`)} held`], ['Node', gpu.nodeProblem], ['Sharing', gpu.sharing],
    ['Taints', (gpu.taints || []).map((t) => `${words(t)} (${taintOf(t)})`).join(', ') || 'none'],
    ['Partitions', (gpu.partitions || []).map((p) => `${p.name}${p.free ? ' (free)' : ''}`).join(', ') || 'none']];
  const remedies = (gpu.taints || []).filter((t) => t.remedy).map((t) => element('p', '', t.remedy));
  $('remedies').replaceChildren(...remedies);
  $('details').querySelector('dl').replaceChildren(...rows.filter((r) => r[1])
    .flatMap(([k, v]) => [element('dt', '', k), element('dd', '', v)]));
  $('details').querySelector('tbody').replaceChildren(...(gpu.holders || []).map((h) => {
    const tr = element('tr');
    const idle = h.idleSince ? `idle since ${time(h.idleSince)}` : '';
    tr.append(...[claimOf(h), h.device, size(h.memory), h.cores ? `${h.cores}%` : 'no limit', (h.pods || []).join(', '),
      time(h.since), h.problem || idle].map((text) => element('td', '', text)));
    labelCells(tr, ['Claim', 'Device', 'Memory', 'Cores', 'Pods', 'Since', 'Problem']);
    return tr;
  }));
  $('details').querySelector('table').hidden = !(gpu.holders || []).length;
  const commands = [`kubectl gpu describe ${keyOfGPU(gpu)}`, `kubectl gpu top -A ${keyOfGPU(gpu)}`,
    ...(gpu.node ? [`kubectl describe node ${gpu.node}`] : [])];
  $('commands').replaceChildren(...commands.map((c) => {
    const item = element('li');
    item.append(element('code', '', c), button('', 'Copy', () => navigator.clipboard.writeText(c)));
    return item;
  }));
  showUse(gpu);
}

// Use is asked for of the nodes that can be seen, and of the GPU of the dialog. The last hour is kept here.
const useAge = 15000; // milliseconds between two questions
const retryAge = 60000; // after an error
const hour = 3600000;
const history = new Map(); // GPU → [{at, busy, used}], the oldest first
const uses = new Map(); // node → what containers use there, by the last answer
let useErrors = []; // lines
let lastAsked = 0;
const seenNodes = new Set();
const shownNodes = 40; // are asked at once

const onScreen = new IntersectionObserver((entries) => {
  for (const e of entries) {
    if (e.isIntersecting) seenNodes.add(e.target.name);
    else seenNodes.delete(e.target.name);
  }
});

let askingUse = false;
let askAgain = false; // somebody has opened a GPU meanwhile

// wantedNodes are the nodes whose use is shown.
function wantedNodes() {
  const names = new Set([...seenNodes].slice(0, shownNodes));
  if ($('details').open) names.add(opened.split('/')[0]);
  for (const w of listed) {
    if (names.size >= shownNodes) break;
    w.gpus.forEach((g) => names.add(g.node));
  }
  return [...names].filter(Boolean);
}

async function askUse() {
  if (askingUse) {
    askAgain = true;
    return;
  }
  const names = wantedNodes();
  if (document.hidden || !names.length) return;
  askingUse = true;
  lastAsked = Date.now();
  try {
    const response = await fetch(`use?${new URLSearchParams(names.map((n) => ['node', n]))}`);
    if (!response.ok) throw new Error((await response.text()).trim());
    const answer = await response.json();
    useErrors = answer.error ? answer.error.split('\n') : [];
    for (const n of names) {
      if (useErrors.some((e) => !e.startsWith('node ') || e.startsWith(`node ${n}:`))) uses.delete(n);
      else uses.set(n, (answer.uses || []).filter((u) => u.node === n));
    }
    for (const n of uses.keys()) if (!nodes.has(n)) uses.delete(n);
    sample(names);
  } catch (e) {
    useErrors = [e.message];
  }
  askingUse = false;
  if ($('details').open && find(opened)) showUse(find(opened));
  drawWorkloads();
  if (askAgain) {
    askAgain = false;
    askUse();
  }
}

// usesOf returns what containers use of the GPU or of a partition of it; undefined: it is not known.
const usesOf = (gpu) => uses.get(gpu.node)?.filter((u) => u.gpu === gpu.name || u.gpu.startsWith(`${gpu.name}-`));

// sample adds the sum of what is used of each GPU of the nodes to its history, and forgets what is older than an hour.
function sample(names) {
  const now = Date.now();
  for (const gpu of names.flatMap((n) => nodes.get(n)?.gpus || [])) {
    const known = usesOf(gpu)?.filter((u) => u.utilization !== undefined);
    const past = history.get(keyOfGPU(gpu));
    if (!known || (!known.length && (!past || isHeld(gpu)))) continue;
    const busy = known.reduce((sum, u) => sum + u.utilization, 0);
    const used = known.reduce((sum, u) => sum + (u.memoryUsed || 0), 0);
    history.set(keyOfGPU(gpu), (past || []).concat({ at: now, busy, used }));
  }
  for (const [key, past] of history) {
    const recent = past.filter((p) => now - p.at < hour);
    if (recent.length) history.set(key, recent);
    else history.delete(key);
  }
}

const useWords = (u) => `${u.utilization === undefined ? '?' : u.utilization}% busy, ` +
  `${u.memoryUsed === undefined ? '?' : size(u.memoryUsed)}${u.memoryRequested ? ` of ${size(u.memoryRequested)}` : ''}`;

// useText is what the pods of a workload use of its GPUs.
function useText(w) {
  const of = w.gpus.flatMap((g) => usesOf(g) || []).filter((u) => u.namespace === w.namespace && w.pods.includes(u.pod));
  return [...new Set(of.map(useWords))].join('; ');
}

// showUse shows what containers use of the GPU, now and in the last hour.
function showUse(gpu) {
  const known = usesOf(gpu);
  const parts = (known || []).map((u) => element('p', '', `${u.namespace}/${u.pod}, container ${u.container}: ${useWords(u)}`));
  const errors = useErrors.filter((e) => !e.startsWith('node ') || e.startsWith(`node ${gpu.node}:`));
  parts.push(...errors.map((e) => element('p', 'reason', e)));
  if (!parts.length) {
    let text = known ? 'its use is not known' : '…';
    if (gpu.memory.used !== undefined && !isHeld(gpu)) text = 'nobody has this GPU';
    parts.push(element('p', 'reason', text));
  }
  $('use').querySelector('div').replaceChildren(...parts);
  chart(history.get(keyOfGPU(gpu)) || [], gpu.memory.total);
}

// chart draws how busy a GPU was, and how much of its memory was used.
function chart(past, total) {
  const figure = $('use').querySelector('figure');
  figure.hidden = past.length < 2;
  if (figure.hidden) return;
  const [first, last] = [past[0].at, past[past.length - 1].at];
  const line = (percent) => past.map((p) => `${(100 * (p.at - first)) / (last - first || 1)},` +
    `${100 - Math.min(100, percent(p))}`).join(' ');
  const [memory, busy] = figure.querySelectorAll('polyline');
  memory.setAttribute('points', line((p) => (100 * p.used) / total));
  busy.setAttribute('points', line((p) => p.busy));
  figure.querySelector('svg').setAttribute('aria-label', `percent: ${past.slice(-12).map((p) => p.busy).join(', ')}`);
  setText(figure.firstElementChild, `Busy in the last ${Math.ceil((Date.now() - first) / 60000)} min, ` +
    `up to ${Math.max(...past.map((p) => p.busy))}%; memory (dashed) up to ${size(Math.max(...past.map((p) => p.used)))}`);
}

// The address has the filters and the GPU that is open, so that what is shown can be linked to.
const inAddress = ['view', 'state', 'node', 'namespace', 'model', 'order', 'colors'];

function writeAddress() {
  const values = inAddress.map((id) => [id, $(id).value]);
  if ($('details').open) values.push(['gpu', opened]);
  window.history.replaceState(null, '', `#${new URLSearchParams(values.filter((v) => v[1]))}`);
}

function readAddress() {
  const values = new URLSearchParams(window.location.hash.slice(1));
  $('view').value = values.get('view') || '';
  viewChanged();
  for (const id of inAddress) {
    const value = values.get(id) || '';
    if ($(id).options && ![...$(id).options].some((o) => o.value === value)) $(id).append(new Option(value, value));
    $(id).value = value;
  }
  opened = values.get('gpu') || '';
}

function openFromAddress() {
  const gpu = opened && find(opened);
  if (gpu) open(gpu);
  else if ($('details').open) $('details').close();
}

// viewChanged shows what is selected, with the states that it has.
function viewChanged() {
  $('gpus').hidden = showsWorkloads();
  $('workloads').hidden = !showsWorkloads();
  const old = $('state').value;
  const names = showsWorkloads() ? workloadStates : Object.keys(states);
  $('state').replaceChildren($('state').options[0], ...names.map((n) => new Option(n, n)));
  $('state').value = names.includes(old) ? old : '';
}

function filtersChanged() {
  writeAddress();
  drawWorkloads();
  drawAll();
  drawLegend();
}

$('nodes').addEventListener('keydown', (event) => {
  const from = event.target.closest('.gpu');
  const to = from && step(event.key, from);
  if (!to) return;
  event.preventDefault();
  focusable(to, true);
});
$('nodes').addEventListener('click', (event) => {
  const clicked = event.target.closest('.gpu');
  if (!clicked) return;
  focusable(clicked, false);
  open(clicked.gpu);
});
// The card that had the focus may have been drawn again.
$('details').addEventListener('close', () => {
  writeAddress();
  if (focused) focused.focus({ preventScroll: true });
});
$('filters').addEventListener('submit', (event) => event.preventDefault());
$('filters').addEventListener('input', (event) => {
  if (event.target === $('view')) viewChanged();
  filtersChanged();
});
$('clear').addEventListener('click', () => {
  for (const id of ['state', 'node', 'namespace', 'model']) $(id).value = '';
  filtersChanged();
});
$('tiles').addEventListener('click', (event) => {
  const tile = event.target.closest('button');
  if (!tile) return;
  const wanted = tile.dataset.state;
  if (showsWorkloads() !== (wanted === 'waiting')) $('view').value = wanted === 'waiting' ? 'workloads' : '';
  viewChanged();
  $('state').value = wanted;
  filtersChanged();
});
window.addEventListener('hashchange', () => {
  readAddress();
  filtersChanged();
  openFromAddress();
});
$('more').open = window.matchMedia('(min-width: 601px)').matches; // else somebody opens it
readAddress();
setInterval(() => { if (!useErrors.length || Date.now() - lastAsked >= retryAge) askUse(); }, useAge);

let lost = ''; // since when
const events = new EventSource('events');
events.onopen = () => {
  lost = '';
  document.body.classList.remove('stale');
  setText($('connection'), 'live');
};
events.onerror = () => {
  lost ||= new Date().toTimeString().slice(0, 8);
  document.body.classList.add('stale');
  setText($('connection'), `not connected since ${lost}; what is shown is old: is kubectl gpu ui still running?`);
};
events.onmessage = (event) => {
  const message = JSON.parse(event.data);
  if (message.full) nodes.clear();
  const first = !complete;
  receive(message);
  if (!first) return;
  openFromAddress();
  setTimeout(askUse, 1000); // when the nodes on the screen are known
};
