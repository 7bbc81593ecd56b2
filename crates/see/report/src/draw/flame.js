// A flame graph of resident memory: callers above whom they call, as wide as the bytes that were not touched after a
// moment, which a slider sets. Data stands in the element #flame; nothing is fetched.
(() => {
  const data = JSON.parse(document.getElementById('flame').textContent);
  const pick = id => document.getElementById(id);
  const time = step => inTime(step * data.step);
  const box = pick('flame-graph'), slider = pick('flame-after');
  let root = null, focus = [];

  // The last place of the slider is the end: all that is resident.
  function tree(after) {
    const all = { name: 'all', bytes: 0, below: new Map() };
    for (const [frames, touched] of data.stacks) {
      const bytes = touched.reduce((sum, [step, bytes]) => step < after || after >= data.steps ? sum + bytes : sum, 0);
      if (!bytes) continue;
      let node = all;
      node.bytes += bytes;
      for (const frame of frames) {
        const name = data.frames[frame];
        if (!node.below.has(name)) node.below.set(name, { name, bytes: 0, below: new Map() });
        node = node.below.get(name);
        node.bytes += bytes;
      }
    }
    return all;
  }

  const hue = name => {
    let hash = 7;
    for (const c of name.replace(/ \(.*/, '')) hash = (hash * 31 + c.codePointAt(0)) >>> 0;
    return hash % 60;
  };

  function draw() {
    const after = Number(slider.value);
    root = tree(after);
    let shown = root, path = [];
    for (const name of focus) {
      if (!shown.below.has(name)) break;
      shown = shown.below.get(name);
      path.push(name);
    }
    focus = path;
    const bars = [];
    let deepest = 0;
    const bar = (node, path, left, width, depth) => {
      deepest = Math.max(deepest, depth);
      const element = document.createElement('button');
      element.type = 'button';
      element.textContent = node.name;
      const part = (100 * node.bytes / root.bytes).toFixed(1);
      element.title = `${node.name}\n${size(node.bytes)}, ${part} % of what is shown`;
      element.style.left = left * 100 + '%';
      element.style.width = width * 100 + '%';
      element.style.top = depth * 1.5 + 'rem';
      element.style.setProperty('--hue', hue(node.name));
      element.addEventListener('click', () => { focus = path; draw(); });
      bars.push(element);
    };
    const below = (node, path, left, width, depth) => {
      const sorted = [...node.below.values()].sort((a, b) => b.bytes - a.bytes || (a.name < b.name ? -1 : 1));
      for (const child of sorted) {
        const part = width * child.bytes / node.bytes;
        // Narrower than a hair: not to be seen, and there may be many.
        if (part < 0.0005) break;
        const to = [...path, child.name];
        bar(child, to, left, part, depth);
        below(child, to, left, part, depth + 1);
        left += part;
      }
    };
    let node = root;
    bar(root, [], 0, 1, 0);
    path.forEach((name, at) => { node = node.below.get(name); bar(node, path.slice(0, at + 1), 0, 1, at + 1); });
    if (root.bytes) below(shown, path, 0, 1, path.length + 1);
    box.replaceChildren(...(root.bytes ? bars : []));
    box.style.height = (deepest + 1) * 1.5 + 'rem';
    const when = after >= data.steps ? 'resident near the end'
      : `not touched after ${time(after)} of ${time(data.steps)}`;
    pick('flame-when').textContent = `${size(root.bytes)} ${when}`;
  }

  slider.addEventListener('input', draw);
  draw();
})();
