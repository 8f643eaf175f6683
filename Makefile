# Two commands matter: `make run` shows Hamlyn at work, `make test` checks everything.
# Each installs what is missing first, and says so.

.DEFAULT_GOAL := help
.PHONY: help run test build prepare install uninstall

# The file that `make run` sends; the hamlyn binary itself unless given.
FILE ?=

help:
	@echo 'make run [FILE=path]   build, then the tour: a real transfer, an attack, a measurement'
	@echo 'make test              every check that CI makes'
	@echo 'make build             the release build alone: target/release/hamlyn'
	@echo 'make install           the C library, below PREFIX=/usr/local (and DESTDIR); make uninstall'

prepare:
	@scripts/prepare.sh

build: prepare
	@. scripts/common.sh && say 'cargo build --release' && cargo build --release --workspace

run: build
	@. scripts/common.sh && exec "$${CARGO_TARGET_DIR:-target}/release/hamlyn" tour $(FILE)

# STEPS='unit loom' runs only those steps; see scripts/test.sh for their names.
test: prepare
	@scripts/test.sh $(STEPS)

# The C library: hamlyn.h, libhamlyn.so, libhamlyn.a, hamlyn.pc.
export PREFIX DESTDIR LIBDIR INCLUDEDIR
install: prepare
	@. scripts/common.sh && cargo build --release -p hamlyn-capi && capi/install.sh install

uninstall:
	@capi/install.sh uninstall
