package flow

import (
	"fmt"
	"strconv"
	"strings"
)

// WordError reports which word of a text is not understood.
type WordError struct {
	Word    string
	Problem string // such as "is not a field known here"
}

// Error returns the word and the problem.
func (e *WordError) Error() string { return fmt.Sprintf("%q %s", e.Word, e.Problem) }

func wordError(word, problem string) error { return &WordError{word, problem} }

// wrapWord adds the word to an error of another parser.
func wrapWord(word string, err error) error {
	if err == nil {
		return nil
	}
	return &WordError{word, "is malformed: " + err.Error()}
}

// between returns the text between prefix and suffix if s has both.
func between(s, prefix, suffix string) (string, bool) {
	if len(s) < len(prefix)+len(suffix) || !strings.HasPrefix(s, prefix) || !strings.HasSuffix(s, suffix) {
		return "", false
	}
	return s[len(prefix) : len(s)-len(suffix)], true
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, sep); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

// cutOutside cuts at the first sep outside of parentheses and quotes.
func cutOutside(s string, sep byte) (before, after string) {
	depth, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted:
			if c == '\\' {
				i++
			}
			quoted = c != '"'
		case c == '"':
			quoted = true
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == sep && depth == 0:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// nextWord cuts one word off a text with commas or white space between words. The word may have a
// quoted part that contains them.
func nextWord(s string) (word, rest string) {
	s = strings.TrimLeft(s, ", \t")
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == ' ' || c == '\t'):
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// unquote returns a name, without quotes if it has them.
func unquote(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		if strings.ContainsRune(s, '"') {
			return "", strconv.ErrSyntax
		}
		return s, nil
	}
	return strconv.Unquote(s)
}
