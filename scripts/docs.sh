#!/usr/bin/env bash
# Builds target/docs: the book of docs/ with the reference of all commands, man pages, completions.
# The reference comes from the help of the command line, so it is made here and kept nowhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rm -rf target/docs
mkdir -p target/docs/source
cp -r docs book.toml README.md ARCHITECTURE.md SPEC.md CONTRIBUTING.md CHANGELOG.md target/docs/source/
cargo run --quiet --package runnel --features docs --bin runnel-docs -- target/docs/source/docs/reference target/docs
# Its pages stand where the table of contents has its heading.
sed -i '/^# Reference$/r target/docs/source/docs/reference/SUMMARY.md' target/docs/source/docs/SUMMARY.md
mdbook=target/tools/bin/mdbook
[ -x $mdbook ] || cargo install --quiet --locked --root target/tools --version '^0.5' mdbook
$mdbook build target/docs/source --dest-dir "$PWD/target/docs/book"
ls -d target/docs/book/index.html target/docs/man target/docs/completions
