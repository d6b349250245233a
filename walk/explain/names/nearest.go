package names

import (
	"cmp"
	"slices"
	"strings"
)

// Nearest returns "; nearest: a, b" with the known names that are most like a word; empty if none
// is.
func Nearest(word string, known []string) string {
	const most = 3    // names
	const similar = 3 // one letter may differ of each of so many
	name := word[strings.LastIndexByte(word, '/')+1:]
	distances := map[string]int{}
	for _, x := range known {
		d := distance(word, x)
		if x[strings.LastIndexByte(x, '/')+1:] == name { // the same name in another namespace
			d = 0
		}
		if d <= max(1, len(name)/similar) {
			distances[x] = d
		}
	}
	var list []string
	for x := range distances {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b string) int {
		return cmp.Or(cmp.Compare(distances[a], distances[b]), cmp.Compare(a, b))
	})
	if len(list) == 0 {
		return ""
	}
	return "; nearest: " + strings.Join(list[:min(most, len(list))], ", ")
}

// distance returns how many letters differ between two words (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for k := range row {
		row[k] = k
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for k := range len(b) {
			cost := diagonal
			if a[i] != b[k] {
				cost++
			}
			diagonal = row[k+1]
			row[k+1] = min(cost, row[k]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
