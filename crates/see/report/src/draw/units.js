// Nanoseconds and bytes in words, for the scripts of a page. Stands in front of each.
const inTime = ns =>
  !ns ? '0'
    : ns < 1e6 ? (ns / 1e3).toFixed(0) + ' us'
    : ns < 1e9 ? (ns / 1e6).toFixed(0) + ' ms'
    : (ns / 1e9).toFixed(2) + ' s';
const size = bytes => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  while (bytes >= 1024 && at < 4) { bytes /= 1024; at++; }
  return (at ? bytes.toFixed(1) : bytes) + ' ' + units[at];
};
