mkdir -p c/src
cd c
export CARGO_TARGET_DIR=$PWD/target
printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
cat > src/main.rs <<'RUST'
use std::collections::{BTreeMap, HashMap};
fn main() {
    let mut tree = BTreeMap::new();
    for i in 0u64..20000 {
        tree.entry(i * 7919 % 1009).or_insert_with(Vec::new).push(format!("{i}"));
    }
    let lengths: HashMap<_, usize> = tree.iter().map(|(k, v)| (*k, v.iter().map(String::len).sum())).collect();
    println!("{} {}", tree.len(), lengths.values().sum::<usize>());
}
RUST
cargo build --quiet --offline
echo $?
./target/debug/small
cargo run --quiet --offline
