//! Random call sequences against the oracle. The fuzzers in `fuzz/` run the same functions over
//! bytes that they search for.

mod model;

fn each_seed(runs: u64, length: usize, run: fn(&[u8])) {
    for seed in 0..runs {
        let bytes = model::noise(seed, length);
        let outcome = std::panic::catch_unwind(|| run(&bytes));
        if outcome.is_err() {
            panic!("reproduce with model::noise({seed}, {length})");
        }
    }
}

#[test]
fn an_interface_does_what_its_oracle_does() {
    each_seed(400, 4000, model::interface);
}

#[test]
fn a_ring_with_a_hostile_other_side_never_panics() {
    each_seed(400, 2000, model::ring);
}

#[test]
fn any_bytes_are_values_or_errors() {
    each_seed(2000, 44, model::wire);
    each_seed(2000, 48, model::wire);
}

// The cases that the sequences above must have met, or they prove little.
#[test]
fn the_sequences_meet_every_refusal() {
    use hamlyn::interface::Refusal;
    let mut met = std::collections::BTreeMap::new();
    for seed in 0..400 {
        let bytes = model::noise(seed, 4000);
        for (name, count) in model::counters_after(&bytes, false) {
            *met.entry(name).or_insert(0) += count;
        }
        let fronts = model::counters_after(&bytes, true).into_iter();
        let fronts: u64 = fronts.filter(|row| row.0 == "fronts_taken").map(|row| row.1).sum();
        *met.entry("fronts_taken").or_insert(0) += fronts;
    }
    for refusal in Refusal::ALL {
        let count = met[refusal.counter_name()];
        assert!(count > 20, "{} only {count} times", refusal.counter_name());
    }
    // The acts of several senders in an entry that they share.
    for name in ["complete_in_shared", "overtaken", "refused_in_shared", "fronts_taken"] {
        assert!(met[name] > 20, "{name} only {} times", met[name]);
    }
    for (name, least) in [("alike", 500), ("direct", 200), ("longer", 20)] {
        assert!(met[name] > least, "{met:?}");
    }
    assert!(met["messages_received"] > 1000 && met["packets_received"] > met["messages_received"]);
}
