#!/bin/sh
# Makes src/os/fabric/sys.rs from the headers of libfabric 1.17 (Debian: libfabric-dev 1.17.0-3), by
# bindgen 0.72.1 (`cargo install bindgen-cli`). Newer headers add fields and calls at the ends of
# structures; the bindings are those of the oldest supported library. Without layout tests: they passed
# where the file was made, and `os::fabric` asserts that this target has words of the same size. A call that
# Hamlyn never makes keeps its place in its table, without its signature.
set -eu
cd "$(dirname "$0")/.."
to=src/os/fabric/sys.rs
headers=$(mktemp --suffix .h)
trap 'rm -f "$headers"' EXIT
{
    echo '//! libfabric 1.17, made from its headers by scripts/fabric.sh: not to be changed by hand.'
    echo
    printf '%s\n' '#include <rdma/fabric.h>' '#include <rdma/fi_cm.h>' '#include <rdma/fi_domain.h>' \
        '#include <rdma/fi_endpoint.h>' '#include <rdma/fi_eq.h>' '#include <rdma/fi_errno.h>' \
        '#include <rdma/fi_rma.h>' > "$headers"
    bindgen "$headers" --no-prepend-enum-name --no-doc-comments --use-core \
        --disable-header-comment --no-layout-tests --raw-line 'use core::ffi::{c_char, c_int, c_uint, c_void};' \
        --raw-line 'pub type Uncalled = Option<unsafe extern "C" fn()>;' \
        --allowlist-type 'fi_(info|av_attr|cq_attr|cq_msg_entry|cq_err_entry|context2)' \
        --allowlist-type 'fid_(fabric|domain|av|cq|ep|mr)|fi_(msg_rma|rma_iov)|iovec' \
        --opaque-type 'fi_ops_(ep|tagged|atomic|collective|poll|wait|eq|cntr)|fid_(nic|eq|wait|poll)' \
        --opaque-type 'fid_(cntr|pep|stx|mc|av_set)|fi_(bus|device|link|pci|eq|cntr|mr|atomic)_attr' \
        --opaque-type 'fi_(collective_attr|av_set_attr|wait_attr|poll_attr)' \
        --allowlist-var 'FI_(MSG|SEND|RECV|TRANSMIT|SOURCE|NUMERICHOST|LOCAL_COMM|REMOTE_COMM)' \
        --allowlist-var 'FI_(CONTEXT|RX_CQ_DATA|CONTEXT2|ORDER_SAS|ENABLE|GETWAIT|EAGAIN|EAVAIL|ETRUNC)' \
        --allowlist-var 'FI_(RMA|READ|WRITE|REMOTE_READ|REMOTE_WRITE|DELIVERY_COMPLETE)' \
        --allowlist-var 'FI_(MR_.*|SOCKADDR|SOCKADDR_IN|SOCKADDR_IN6)' \
        -- -I"$(cc -print-file-name=include)"
} | python3 -c '
import re, sys

CALLS = """av_open bind close control cq_open domain endpoint getname insert read readerr readmsg recv reg remove send sread
trywait writemsg""".split()
text, named = sys.stdin.read(), set(re.findall(r"\w+", " ".join(open(file).read() for file in sys.argv[1:])))
call = re.compile(r"pub (\w+):\s*::core::option::Option<\s*unsafe extern \"C\" fn\([^()]*\)[^()]*?>,\n")
text = call.sub(lambda of: of[0] if of[1] in CALLS else f"pub {of[1]}: Uncalled,\n", text)
text = re.sub(r"pub const (\w+): [^;]*;\n", lambda of: of[0] if of[1] in named else "", text)
item = re.compile(r"(?:#\[.*\]\n)*pub (?:struct|union|type) (\w+)(?: = [^;]*;| \{\n(?:    .*\n)*\})\n")
before = ""
while before != text:
    before, words = text, re.findall(r"\w+", text)
    is_used = lambda of: of[1] in named or words.count(of[1]) > re.findall(r"\w+", of[0]).count(of[1])
    text = item.sub(lambda of: of[0] if is_used(of) else "", text)
text = text.replace("::core::ffi::", "").replace("::core::option::", "")
print(text, end="")
' src/os/fabric/[!s]*.rs src/os/fabric/endpoint/*.rs tests/support/strict_fabric.rs > "$to.new"
mv "$to.new" "$to"
rustfmt --edition 2024 "$to"
