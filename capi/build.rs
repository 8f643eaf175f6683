//! Gives the shared library the name under which programs ask for it when they start.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number goes up with each change that breaks compiled programs.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhamlyn.so.0");
}
