# Two commands matter: `make run` shows Hamlyn at work, `make test` checks it.
# Each installs what is missing first, and says so.

.DEFAULT_GOAL := help
.PHONY: help run test deep build prepare c-library install uninstall deb docs peers

# The file that `make run` sends; the program itself unless given.
FILE ?=

help:
	@echo 'make run [FILE=path]   build, then the tour: a real transfer, an attack, a measurement'
	@echo 'make test              every check that takes no more than some minutes: eleven in all'
	@echo 'make deep              the others: release build, model checkers, sanitizers, fuzzing'
	@echo 'make build             the release build alone: target/release/hamlyn'
	@echo 'make install           the command, the C library and the layers, below PREFIX=/usr/local (and DESTDIR);'
	@echo '                       make uninstall'
	@echo 'make deb               what make install installs, as a Debian package'
	@echo 'make docs              the documentation as a site, with its links checked'
	@echo 'make peers             installs UCX, MPICH and others, and measures them beside Hamlyn'

prepare:
	@scripts/prepare.sh

build: prepare
	@. scripts/common.sh && say 'cargo build --release' && cargo build --release --workspace --exclude hamlyn-python --exclude hamlyn-tour

# The tour and the command alone, in a profile that compiles quickly: it is what a newcomer waits for.
run: prepare
	@. scripts/common.sh && say 'cargo build --profile tour -p hamlyn-tour -p hamlyn-cli' && \
		cargo build --profile tour -p hamlyn-tour -p hamlyn-cli
	@exec "$${CARGO_TARGET_DIR:-target}/tour/hamlyn-tour" $(FILE)

# STEPS='unit loom' runs only those steps, of either; see scripts/test.sh for their names.
test: prepare
	@scripts/test.sh $(or $(STEPS),test)

deep: prepare
	@scripts/test.sh $(or $(STEPS),deep)

# The C library: hamlyn.h, libhamlyn.so, libhamlyn.a, hamlyn.pc.
export PREFIX DESTDIR LIBDIR INCLUDEDIR BINDIR DATADIR MANDIR TMPFILESDIR
c-library: prepare
	@. scripts/common.sh && say 'cargo build --release -p hamlyn-capi' && \
		cargo build --release -p hamlyn-capi

# The command, too, with its manual pages, completions and the line for systemd-tmpfiles. By `sudo`
# only what was built before is installed, be it the library alone: root's cargo, if any, is another.
install:
	@if [ -z "$$SUDO_USER" ] || [ ! -e "$${CARGO_TARGET_DIR:-target}/release/libhamlyn_c.so" ]; then \
		$(MAKE) --no-print-directory build; fi
	@capi/install.sh install
	@for layer in fm clan vmmc svm; do \
		if [ -e "$${CARGO_TARGET_DIR:-target}/release/libhamlyn_$$layer.so" ]; then layers/$$layer/install.sh install; fi; done
	@layers/rpc/install.sh install

uninstall:
	@capi/install.sh uninstall
	@for layer in fm clan vmmc svm rpc; do layers/$$layer/install.sh uninstall; done

# What `make install` installs, as a package.
deb: build
	@scripts/deb.sh build

# The Markdown of the repository as a site, to be looked at in a browser.
docs:
	@scripts/prepare.sh python && scripts/docs.sh

# Rows of JSON into the build folder of the peers, then their table. On an otherwise idle machine;
# takes some eight minutes. Not a part of `make test`.
peers: build
	@bench/peers/install.sh
	@. scripts/common.sh && say 'bench/peers/run.py' && \
		bench/peers/run.py >bench/peers/build/rows.jsonl
	@bench/peers/build/plot/bin/python bench/peers/table.py bench/peers/build/rows.jsonl \
		--chart bench/peers/build/chart.svg
