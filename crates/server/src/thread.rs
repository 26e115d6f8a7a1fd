//! Which comments of an issue go with a claim: the newest that fit, never one out of the middle.
//!
//! Pure. Absent on purpose: which comments a person may read (withdrawn ones never come here, F-044), and how
//! their bodies became Markdown.

/// How much of a thread goes with a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadBounds {
    /// Comments. What is older is left out.
    pub comments_max: usize,
    /// Characters of all bodies together. What is older is left out.
    pub chars_max: usize,
}

impl Default for ThreadBounds {
    fn default() -> Self {
        Self { comments_max: 40, chars_max: 32_000 }
    }
}

/// The comments that fit, oldest first as they came, and how many were left out. The newest is always kept,
/// whole. `chars` gives a comment's length in characters; it is asked from the newest on, and not for
/// comments beyond the first that does not fit, so that it may convert their text.
///
/// A store that loads no more than the newest `comments_max` adds what it did not load to the count.
pub fn cut<T>(
    mut comments: Vec<T>,
    bounds: ThreadBounds,
    mut chars: impl FnMut(&T) -> usize,
) -> (Vec<T>, usize) {
    let mut sum = 0_usize;
    let mut fit = 0;
    for comment in comments.iter().rev() {
        // The first bound is cheap, the second may cost a conversion.
        if fit > 0 && fit >= bounds.comments_max {
            break;
        }
        sum = sum.saturating_add(chars(comment));
        if fit > 0 && sum > bounds.chars_max {
            break;
        }
        fit += 1;
    }
    let omitted = comments.len() - fit;
    (comments.split_off(omitted), omitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths, oldest first, cut with the default bounds.
    fn cut_lengths(lengths: &[usize]) -> (Vec<usize>, usize) {
        cut(lengths.to_vec(), ThreadBounds::default(), |length| *length)
    }

    #[test]
    fn f_047_no_comments_are_none_left_out() {
        assert_eq!(cut_lengths(&[]), (vec![], 0));
    }

    #[test]
    fn f_045_forty_comments_fit_and_of_more_the_oldest_go() {
        let numbered: Vec<usize> = (0..41).collect();
        assert_eq!(cut_lengths(&numbered[..39]), (numbered[..39].to_vec(), 0));
        assert_eq!(cut_lengths(&numbered[..40]), (numbered[..40].to_vec(), 0));
        assert_eq!(cut_lengths(&numbered), (numbered[1..].to_vec(), 1));
    }

    #[test]
    fn f_045_the_sum_may_be_the_bound_exactly() {
        assert_eq!(cut_lengths(&[1, 31_999, 1]), (vec![31_999, 1], 1));
        assert_eq!(cut_lengths(&[31_999, 1]), (vec![31_999, 1], 0));
        assert_eq!(cut_lengths(&[32_000, 1]), (vec![1], 1));
        assert_eq!(cut_lengths(&[32_000, 0]), (vec![32_000, 0], 0));
    }

    #[test]
    fn f_045_no_older_comment_takes_the_place_of_one_that_does_not_fit() {
        assert_eq!(cut_lengths(&[5, 40_000, 7, 8]), (vec![7, 8], 2));
    }

    #[test]
    fn f_046_the_newest_is_there_whatever_its_size() {
        assert_eq!(cut_lengths(&[10, 32_001]), (vec![32_001], 1));
        assert_eq!(cut_lengths(&[usize::MAX, usize::MAX]), (vec![usize::MAX], 1));
        let nothing = ThreadBounds { comments_max: 0, chars_max: 0 };
        assert_eq!(cut(vec![3, 4], nothing, |length| *length), (vec![4], 1));
    }

    #[test]
    fn f_047_the_count_and_the_kept_are_all() {
        for total in 0..120_usize {
            let (kept, omitted) = cut_lengths(&vec![900; total]);
            assert_eq!(kept.len() + omitted, total);
            assert_eq!(kept.len(), total.min(35));
        }
    }

    #[test]
    fn the_length_is_asked_for_what_may_fit_only() {
        let mut asked = Vec::new();
        let comments: Vec<usize> = (0..100).collect();
        cut(comments, ThreadBounds { comments_max: 3, chars_max: 1_000 }, |comment| {
            asked.push(*comment);
            1
        });
        assert_eq!(asked, [99, 98, 97]);
    }
}
