//! Lengths of messages as in section 2.1 of the paper: drawn from a stated distribution.

/// A share of the messages, and their lengths, each as likely.
type Part = (f64, usize, usize);

pub struct Mix {
    pub name: &'static str,
    parts: &'static [Part],
}

pub const MIXES: [Mix; 3] = [
    // Gusella: most packets are below 576 bytes, 60 % of these at most 50; a mean of 300 to 400.
    Mix { name: "ethernet", parts: &[(0.48, 1, 50), (0.32, 51, 575), (0.20, 576, 1500)] },
    // Kay and others, TCP: over 99 % below 200 bytes.
    Mix { name: "tcp", parts: &[(0.99, 1, 199), (0.01, 200, 1460)] },
    // The same, UDP: 86 % below 200 bytes.
    Mix { name: "udp", parts: &[(0.86, 1, 199), (0.14, 200, 1472)] },
];

/// So many lengths are drawn, and used again and again.
const DRAWN: usize = 4096;

impl Mix {
    pub fn describe(&self) -> String {
        let parts = self.parts.iter();
        let parts = parts.map(|(share, least, most)| {
            format!("{:.0} % of {least} to {most} bytes", share * 100.0)
        });
        let parts: Vec<String> = parts.collect();
        let drawn = draw(self);
        let below = |most: usize| {
            drawn.iter().filter(|of| **of < most).count() as f64 / DRAWN as f64 * 100.0
        };
        let mean = drawn.iter().sum::<usize>() as f64 / DRAWN as f64;
        format!(
            "{}: {}; drawn: {:.0} % below 576, {:.0} % below 200, {:.0} % below 51, mean {mean:.0} bytes",
            self.name,
            parts.join(", "),
            below(576),
            below(200),
            below(51),
        )
    }
}

/// The same at both ends.
fn draw(mix: &Mix) -> Vec<usize> {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut one = || {
        let (mut at, within) = (random(), random());
        for (share, least, most) in mix.parts {
            if at < *share {
                return least + (within * (most - least + 1) as f64) as usize;
            }
            at -= share;
        }
        mix.parts[0].1
    };
    (0..DRAWN).map(|_| one()).collect()
}

pub fn lengths(mix: usize) -> Vec<usize> {
    MIXES.get(mix).map(draw).unwrap_or_else(|| vec![16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixes_are_those_of_the_paper() {
        let share = |mix: usize, most: usize| {
            let all = lengths(mix);
            all.iter().filter(|of| **of < most).count() as f64 / all.len() as f64
        };
        assert!(share(0, 576) > 0.5 && (share(0, 51) / share(0, 576) - 0.6).abs() < 0.03);
        assert!(share(1, 200) > 0.98 && (share(2, 200) - 0.86).abs() < 0.02);
        let mean = lengths(0).iter().sum::<usize>() / DRAWN;
        assert!((300..=400).contains(&mean), "{mean}");
    }
}
