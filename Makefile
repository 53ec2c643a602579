# The commands of a new user. What they do is in scripts/ and xtask/.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run test bench package install uninstall clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## serve ./var, mount it at ./mnt, show a short tour, stay until Ctrl-C (ONCE=1: end after the tour)
	@scripts/deps run
	@scripts/rocksdb-cache
	@scripts/tour

test: ## run every check (needs /dev/fuse and root or sudo)
	@scripts/deps test
	@scripts/rocksdb-cache
	@cargo xtask ci

install: ## install the program, libpando for C, its mount(8) helpers, systemd units and their user, completions and man pages (PREFIX=/usr/local, DESTDIR=)
	@scripts/deps run
	@scripts/rocksdb-cache
	@scripts/build
	@cargo build --locked --release --package capi
	@scripts/install

package: ## make a package for Debian in target/packages
	@scripts/deps package
	@scripts/rocksdb-cache
	@scripts/build --for-package
	@PANDO=target/package/release/pando scripts/package

uninstall: ## remove what make install has installed; data directories stay
	@scripts/install --remove

bench: ## measure this machine beside its floors, in a few minutes; results go to target/bench (needs /dev/fuse)
	@scripts/deps run
	@scripts/rocksdb-cache
	@scripts/bench

clean: ## remove what was built; ./var, with your files, stays
	cargo clean
