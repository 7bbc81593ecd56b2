cat > program.js <<'JS'
const crypto = require("crypto");
const zlib = require("zlib");
const map = new Map();
let kept = [];
for (let i = 0; i < 100000; i++) {
  map.set("k" + ((i * 7919) % 30011), Buffer.alloc(i % 300, i & 255));
  if (i % 3 == 0) map.delete("k" + (i % 30011));
  if (i % 50 == 0) kept.push(Buffer.alloc(5000, "node" + i));
  if (kept.length > 500) kept = kept.filter((_, j) => j % 3);
}
const hash = crypto.createHash("sha256");
for (const key of [...map.keys()].sort()) hash.update(key).update(map.get(key));
for (const buffer of kept) hash.update(buffer);
const text = JSON.stringify([...map.keys()].sort());
console.log(zlib.gunzipSync(zlib.gzipSync(text)).toString() === text, hash.digest("hex"));
crypto.pbkdf2("a", "b", 5000, 64, "sha512", (error, key) => console.log(key.toString("hex").slice(0, 20)));
console.log(require("child_process").execSync("echo child").toString().trim());
JS
node program.js
