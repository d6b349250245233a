package picture

import "strings"

// Sizes of text in the picture.
const (
	titleSize   = 17 // 15 and bold
	verdictSize = 15 // 13 and bold
	labelSize   = 12
	labelInset  = 7 // between the side of a box and its label
	longLabel   = 40
)

// textWidth returns the width of a text, in pixels, in the widest font of the style sheet, DejaVu
// Sans.
func textWidth(text string, size int) int {
	sum := 0
	for _, r := range text {
		sum += letterWidth(r)
	}
	return (sum*size + 999) / 1000
}

// letterWidth returns the width of a letter in thousandths of the size, rounded up.
func letterWidth(r rune) int {
	switch {
	case strings.ContainsRune("ijl'", r):
		return 280
	case strings.ContainsRune(" |.,:;/\\", r):
		return 340
	case strings.ContainsRune("ftr()[]-!`\"", r):
		return 465
	case strings.ContainsRune("mMwWQOG@=<>+~%#&", r) || r > 0x7f:
		return 1000
	case r >= 'A' && r <= 'Z':
		return 775
	}
	return 640
}

// wrap splits a text into lines of at most width pixels.
func wrap(text string, width, size int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && textWidth(line+" "+word, size) > width {
			out = append(out, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
		for r := []rune(line); textWidth(line, size) > width; line = string(r) { // longer than a line
			n := 1
			for n < len(r)-1 && textWidth(string(r[:n+1]), size) <= width {
				n++
			}
			out, r = append(out, string(r[:n])), r[n:]
		}
	}
	return append(out, line)
}

// short shortens a long label in the middle.
func short(label string) string {
	r := []rune(label)
	if len(r) <= longLabel {
		return label
	}
	return string(r[:longLabel/2-1]) + "…" + string(r[len(r)-longLabel/2:])
}
