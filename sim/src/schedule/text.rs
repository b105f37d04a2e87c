//! Appending of words and numbers to a text without the overhead of `format!`, for writers of large files.

/// Value that can be appended to a text.
pub(super) trait TextPart {
    /// Appends the value to `text`.
    fn put(self, text: &mut String);
}

impl TextPart for &str {
    #[inline]
    fn put(self, text: &mut String) {
        text.push_str(self);
    }
}

impl TextPart for char {
    #[inline]
    fn put(self, text: &mut String) {
        text.push(self);
    }
}

impl TextPart for u64 {
    #[inline]
    fn put(self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(self));
    }
}

impl TextPart for u32 {
    #[inline]
    fn put(self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(self));
    }
}

/// `None` is written as −1.
impl TextPart for Option<u32> {
    #[inline]
    fn put(self, text: &mut String) {
        match self {
            Some(number) => number.put(text),
            None => text.push_str("-1"),
        }
    }
}

/// Writes the numbers separated by commas.
impl TextPart for &[u32] {
    fn put(self, text: &mut String) {
        for (i, &number) in self.iter().enumerate() {
            if i > 0 {
                text.push_str(", ");
            }
            number.put(text);
        }
    }
}

/// Appends several parts to a text.
macro_rules! put {
    ($text:expr, $($part:expr),+ $(,)?) => {{
        let text: &mut String = $text;
        $($crate::schedule::text::TextPart::put($part, text);)+
    }};
}
pub(super) use put;

#[cfg(test)]
mod tests {
    #[test]
    fn parts_match_format() {
        for number in [0u32, 9, 10, 99, 100, 4_294_967_295] {
            let mut text = String::from("before ");
            put!(&mut text, number, ' ', u64::from(number) << 32, ",", Some(number), "", None::<u32>);
            assert_eq!(text, format!("before {number} {},{number}-1", u64::from(number) << 32));
        }
        for (list, expected) in [(&[][..], "[]"), (&[7][..], "[7]"), (&[7, 0, 80][..], "[7, 0, 80]")] {
            let mut text = String::new();
            put!(&mut text, "[", list, "]");
            assert_eq!(text, expected);
        }
    }
}
