//! Builds again when a migration is added: the macro that embeds them sees only files it has read before.

fn main() {
    println!("cargo::rerun-if-changed=migrations");
}
