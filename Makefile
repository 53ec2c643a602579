# The commands of a new user. What they do is in scripts/ and xtask/.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run test clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## serve ./var, mount it at ./mnt, show a short tour, stay until Ctrl-C (ONCE=1: end after the tour)
	@scripts/deps run
	@scripts/rocksdb-cache
	@scripts/tour

test: ## run every check (needs /dev/fuse and root or sudo)
	@scripts/deps test
	@scripts/rocksdb-cache
	@cargo xtask ci

clean: ## remove what was built; ./var, with your files, stays
	cargo clean
