// The heat map of a report: time from left to right, objects from top to bottom, each cut into parts.
// Data stands in the element #heat; nothing is fetched.
(() => {
  const heat = JSON.parse(document.getElementById('heat').textContent);
  const canvas = document.getElementById('map'), tip = document.getElementById('tip');
  const pick = id => document.getElementById(id);
  const time = step => inTime(step * heat.step);
  const LABEL = 230, TOP = 58, AXIS = 26;
  const LAYERS = {
    accesses: c => c[2] + c[3], reads: c => c[2], writes: c => c[3], first: c => c[4],
    sharing: c => bits(c[5]) + bits(c[6]),
  };
  const bits = n => { let count = 0; for (n >>>= 0; n; n &= n - 1) count++; return count; };
  const threadsOf = (low, high) => {
    const of = [];
    for (let i = 0; i < 64; i++) if ((i < 32 ? low >>> i : high >>> (i - 32)) & 1) of.push(heat.threads[i]);
    return of;
  };
  let layer = 'accesses', view = [0, heat.steps], only = null, rows = [], columns = 1, drag = null, grid = [];

  function layout() {
    const sort = pick('order').value, text = pick('find').value.toLowerCase();
    let shown = heat.objects.filter(o => !text || o.n.toLowerCase().includes(text) || o.k.includes(text));
    if (only !== null) shown = [heat.objects[only]];
    const start = o => o.c.reduce((least, c) => Math.min(least, c[1]), Infinity);
    if (sort === 'size') shown = shown.slice().sort((a, b) => b.b - a.b);
    if (sort === 'first') shown = shown.slice().sort((a, b) => start(a) - start(b));
    if (sort === 'name') shown = shown.slice().sort((a, b) => a.k < b.k ? -1 : a.k > b.k ? 1 : a.n < b.n ? -1 : 1);
    const most = only === null ? Number(pick('count').value) : 1;
    let y = TOP;
    rows = shown.slice(0, most).map(object => {
      const height = only === null ? Math.min(48, Math.max(15, object.s * 3)) : 480;
      const row = { object, y, height };
      y += height + 2;
      return row;
    });
    pick('left').textContent = shown.length > most ? `${shown.length - most} more objects are not shown.` : '';
    return y + AXIS;
  }

  function colour(share, dark) {
    // From the page's own colour over blue to yellow or red: lightness falls (or rises) all the way.
    const stops = dark
      ? [[23, 23, 26], [38, 62, 120], [120, 62, 150], [222, 95, 95], [252, 200, 90], [255, 255, 200]]
      : [[255, 255, 255], [205, 220, 245], [140, 160, 220], [150, 85, 170], [185, 40, 85], [70, 5, 35]];
    const at = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1), low = Math.floor(at), part = at - low;
    return stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * part));
  }

  function draw() {
    const width = canvas.parentElement.clientWidth, height = layout();
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.height = height + 'px';
    const g = canvas.getContext('2d');
    g.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const [text, soft, line] = ['--text', '--soft', '--line'].map(name => style.getPropertyValue(name));
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const plot = width - LABEL - 10;
    columns = Math.max(1, Math.min(Math.floor(plot / 2), view[1] - view[0]));
    const per = (view[1] - view[0]) / columns, cell = plot / columns;
    g.font = '12px system-ui, sans-serif';
    g.textBaseline = 'middle';
    // What falls into a cell of the screen: sums, and the union of threads.
    let most = 0;
    grid = rows.map(({ object }) => {
      const cells = new Map();
      for (const c of object.c) {
        if (c[1] < view[0] || c[1] >= view[1]) continue;
        const key = c[0] * 4096 + Math.min(columns - 1, Math.floor((c[1] - view[0]) / per));
        const sum = cells.get(key);
        if (!sum) { cells.set(key, c.slice()); continue; }
        sum[2] += c[2]; sum[3] += c[3]; sum[4] += c[4]; sum[5] |= c[5]; sum[6] |= c[6];
      }
      for (const c of cells.values()) most = Math.max(most, LAYERS[layer](c));
      return cells;
    });
    const scale = layer === 'sharing' ? Math.max(2, most) : Math.log(most + 1);
    const shade = value => layer === 'sharing' ? value / scale : Math.log(value + 1) / scale;
    rows.forEach((row, at) => {
      const part = row.height / row.object.s;
      g.fillStyle = `rgb(${colour(0.03, dark).join()})`;
      g.fillRect(LABEL, row.y, plot, row.height);
      for (const [key, c] of grid[at]) {
        const value = LAYERS[layer](c);
        if (!value) continue;
        g.fillStyle = `rgb(${colour(0.12 + 0.88 * shade(value), dark).join()})`;
        g.fillRect(LABEL + (key % 4096) * cell, row.y + c[0] * part, Math.max(1, cell), Math.max(1, part));
      }
      g.fillStyle = text;
      let name = row.object.n;
      while (name.length > 4 && g.measureText(name).width > LABEL - 12) name = '…' + name.slice(2);
      g.textAlign = 'right';
      g.fillText(name, LABEL - 8, row.y + row.height / 2);
    });
    // Working set above, time below.
    g.textAlign = 'left';
    g.fillStyle = soft;
    const top = Math.max(1, ...heat.working);
    g.fillText(`working set, up to ${size(top * heat.page)}`, 0, 24);
    g.beginPath();
    g.strokeStyle = style.getPropertyValue('--s0');
    let begun = false;
    heat.working.forEach((pages, step) => {
      if (!pages || step < view[0] || step >= view[1]) return;
      const x = LABEL + (step + 0.5 - view[0]) / (view[1] - view[0]) * plot, y = 46 - pages / top * 40;
      begun ? g.lineTo(x, y) : g.moveTo(x, y);
      begun = true;
    });
    g.stroke();
    g.strokeStyle = line;
    g.fillStyle = soft;
    // So many times that their labels do not touch.
    const marks = Math.max(1, Math.min(5, Math.floor(plot / 70)));
    for (let i = 0; i <= marks; i++) {
      const x = LABEL + plot * i / marks;
      g.beginPath(); g.moveTo(x, TOP - 8); g.lineTo(x, height - AXIS + 4);
      g.globalAlpha = 0.5; g.stroke(); g.globalAlpha = 1;
      g.textAlign = i === marks ? 'right' : 'center';
      g.fillText(time(view[0] + (view[1] - view[0]) * i / marks), x, height - 12);
    }
    if (drag && drag.to !== drag.from) {
      g.globalAlpha = 0.25; g.fillStyle = text;
      g.fillRect(Math.min(drag.from, drag.to), TOP, Math.abs(drag.to - drag.from), height - TOP - AXIS);
      g.globalAlpha = 1;
    }
    pick('scale').textContent = layer === 'sharing'
      ? `darkest: ${most} threads in one cell`
      : `strongest: ${most} ${layer === 'first' ? 'pages' : layer} in one cell, logarithmic`;
  }

  const stepAt = x => view[0] + (x - LABEL) / (canvas.clientWidth - LABEL - 10) * (view[1] - view[0]);
  const rowAt = y => rows.findIndex(row => y >= row.y && y < row.y + row.height);

  function hover(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    if (drag) { drag.to = Math.max(LABEL, x); draw(); return; }
    const at = rowAt(y);
    if (at < 0) { tip.hidden = true; return; }
    const { object, y: top, height } = rows[at];
    const pages = `${object.p} pages touched, ${object.w} written`;
    const accesses = `${object.r} reads, ${object.wr} writes`;
    const lines = [[object.n, 'b'], [`${object.k}, ${size(object.b)}; ${pages}; ${accesses}`]];
    if (x >= LABEL) {
      const part = Math.min(object.s - 1, Math.floor((y - top) / height * object.s));
      const column = Math.min(columns - 1, Math.floor((x - LABEL) / (canvas.clientWidth - LABEL - 10) * columns));
      const c = grid[at].get(part * 4096 + column), per = (view[1] - view[0]) / columns;
      const from = view[0] + column * per, bytes = object.b / object.s;
      const [first, last] = [part, part + 1].map(at => size(Math.round(at * bytes)));
      lines.push([`${time(from)} to ${time(from + per)}, bytes ${first} to ${last}`]);
      const here = c ? `${c[2]} reads, ${c[3]} writes, ${c[4]} pages touched for the first time` : 'nothing';
      lines.push([`here: ${here}`]);
      if (c) lines.push([`by threads ${threadsOf(c[5], c[6]).join(', ')}`]);
    }
    const by = object.f.slice(0, 4).map(([thread, pages]) => `${heat.threads[thread]} (${pages} pages)`);
    lines.push(['first touched by ' + by.join(', ')]);
    if (object.l.length) {
      lines.push(['accessed at', 'b']);
      for (const [line, reads, writes] of object.l.slice(0, 5)) {
        lines.push([`${heat.lines[line]}: ${reads} reads, ${writes} writes`]);
      }
    }
    if (object.d.length) {
      lines.push([object.k === 'allocation' ? 'allocated by' : 'in', 'b']);
      for (const frame of object.d.slice(0, 9)) lines.push([frame]);
    }
    tip.replaceChildren(...lines.map(([content, bold]) => {
      const element = document.createElement(bold || 'div');
      element.textContent = content;
      return element;
    }));
    tip.hidden = false;
    const right = event.clientX + tip.offsetWidth + 24 > innerWidth;
    tip.style.left = (right ? Math.max(4, event.clientX - tip.offsetWidth - 12) : event.clientX + 14) + 'px';
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)) + 'px';
  }

  function zoom(from, to) {
    const least = 8;
    from = Math.max(0, Math.floor(from)); to = Math.min(heat.steps, Math.ceil(to));
    if (to - from < least) to = Math.min(heat.steps, from + least);
    if (to - from < least) from = Math.max(0, to - least);
    view = [from, Math.max(to, from + 1)];
    draw();
  }

  canvas.addEventListener('mousemove', hover);
  canvas.addEventListener('mouseleave', () => { tip.hidden = true; });
  canvas.addEventListener('mousedown', event => {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    if (x >= LABEL) drag = { from: x, to: x };
  });
  addEventListener('mouseup', event => {
    if (!drag) return;
    const { from, to } = drag;
    drag = null;
    if (Math.abs(to - from) > 4) zoom(stepAt(Math.min(from, to)), stepAt(Math.max(from, to)));
    else draw();
  });
  canvas.addEventListener('click', event => {
    const box = canvas.getBoundingClientRect();
    if (event.clientX - box.left >= LABEL) return;
    const at = rowAt(event.clientY - box.top);
    if (at >= 0) { only = only === null ? heat.objects.indexOf(rows[at].object) : null; draw(); }
  });
  canvas.addEventListener('dblclick', () => { view = [0, heat.steps]; only = null; draw(); });
  canvas.addEventListener('wheel', event => {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    if (x < LABEL || !(event.ctrlKey || event.shiftKey)) return;
    event.preventDefault();
    const at = stepAt(x), factor = event.deltaY < 0 ? 0.7 : 1.4;
    zoom(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  }, { passive: false });
  for (const button of document.querySelectorAll('input[name=layer]'))
    button.addEventListener('change', () => { layer = button.value; draw(); });
  for (const id of ['order', 'find', 'count']) pick(id).addEventListener('input', draw);
  addEventListener('resize', draw);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  draw();
})();
