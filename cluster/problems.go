package cluster

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxProblems is how many problems of one object are reported. Further ones are only counted: one
// annotation of 260 kB can have 52 000 errors, which every node would report.
const MaxProblems = 20

// maxMessage is the largest length of a problem's message in bytes: that of an Event's message.
const maxMessage = 1024

// Problem is an error in one object. It is reported on that object, as an Event or a condition, and
// in the log. It does not affect other objects.
type Problem struct {
	Owner   Owner
	Field   string // path in the object, such as "spec.ports[0].port"; may be empty
	Message string
	More    int // number of problems that this one represents; 0: it is a single problem
}

// Error returns a text that names the object and the field.
func (p Problem) Error() string {
	if p.Field == "" {
		return fmt.Sprintf("%s: %s", p.Owner, p.Message)
	}
	return fmt.Sprintf("%s: %s: %s", p.Owner, p.Field, p.Message)
}

// Compare orders problems by owner, field and message. Those that represent others are the last of
// their owner.
func (p Problem) Compare(q Problem) int {
	return cmp.Or(p.Owner.Compare(q.Owner), cmp.Compare(p.More, q.More), cmp.Compare(p.Field, q.Field),
		cmp.Compare(p.Message, q.Message))
}

// moreProblems returns the Problem that represents n others.
func moreProblems(o Owner, field string, n int) Problem {
	message := fmt.Sprintf("and %d more problems", n)
	if n == 1 {
		message = "and 1 more problem"
	}
	return Problem{Owner: o, Field: field, Message: message, More: n}
}

// Problems collects the problems of objects. It keeps MaxProblems for each field of an object and
// counts the others, so that its size is bounded. The zero value is empty.
type Problems struct {
	fields  []*fieldProblems
	byField map[objectField]*fieldProblems
}

// objectField is a field of an object. All elements of a list are one field.
type objectField struct {
	owner Owner
	field string
}

// fieldProblems has the problems of a field of an object.
type fieldProblems struct {
	objectField
	kept   []Problem
	others map[uint64]struct{} // hashes of the others
}

var problemSeed = maphash.MakeSeed()

// Add adds a problem, if it is not there yet.
func (p *Problems) Add(owner Owner, field, format string, args ...any) {
	p.add(Problem{Owner: owner, Field: field, Message: fmt.Sprintf(format, args...)})
}

func (p *Problems) add(x Problem) {
	x.Message = Truncate(x.Message, maxMessage)
	k := objectField{x.Owner, withoutIndexes(x.Field)}
	f := p.byField[k]
	if f == nil {
		f = &fieldProblems{objectField: k}
		p.fields = append(p.fields, f)
		if p.byField == nil {
			p.byField = map[objectField]*fieldProblems{}
		}
		p.byField[k] = f
	}
	switch {
	case slices.Contains(f.kept, x):
	case len(f.kept) < MaxProblems:
		f.kept = append(f.kept, x)
	default:
		if f.others == nil {
			f.others = map[uint64]struct{}{}
		}
		f.others[maphash.Comparable(problemSeed, x)] = struct{}{}
	}
}

// Len returns how many problems there are, listed or not.
func (p *Problems) Len() (n int) {
	for _, f := range p.fields {
		n += len(f.kept) + len(f.others)
	}
	return n
}

// List returns the problems of each field in the order in which they were added, then the number of
// the others.
func (p *Problems) List() []Problem {
	var list []Problem
	for _, f := range p.fields {
		list = append(list, f.kept...)
		if n := len(f.others); n > 0 {
			list = append(list, moreProblems(f.owner, f.field, n))
		}
	}
	return list
}

// withoutIndexes returns a field without the numbers of elements: "spec.ports[].port" for
// "spec.ports[12].port".
func withoutIndexes(field string) string {
	if !strings.Contains(field, "[") {
		return field
	}
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, field)
}

// SortProblems sorts problems and drops duplicates. Of an object with more than MaxProblems it
// keeps that many, spread evenly over the fields, and adds one with the number of the others. It
// modifies its argument.
func SortProblems(list []Problem) []Problem {
	slices.SortFunc(list, Problem.Compare)
	list = slices.Compact(list)
	out := list[:0]
	for i := 0; i < len(list); {
		end := i + 1
		for end < len(list) && list[end].Owner == list[i].Owner {
			end++
		}
		out = append(out, shorten(list[i:end])...)
		i = end
	}
	clear(list[len(out):])
	return out
}

// shorten limits the problems of one object. Those that represent others are the last of the list.
// They become one.
func shorten(list []Problem) []Problem {
	listed, more := len(list), 0
	for ; listed > 0 && list[listed-1].More > 0; listed-- {
		more += list[listed-1].More
	}
	if listed <= MaxProblems && len(list)-listed <= 1 {
		return list
	}
	// Problems of a field are adjacent. In each turn, one problem of every field is taken, until
	// there are enough.
	turns, taken := make([]int, listed), map[string]int{}
	for i, p := range list[:listed] {
		field := withoutIndexes(p.Field)
		turns[i] = taken[field]
		taken[field]++
	}
	order := make([]int, listed)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(turns[i], turns[j]) })
	kept := order[:min(listed, MaxProblems)]
	slices.Sort(kept)
	short := make([]Problem, 0, len(kept)+1)
	for _, i := range kept {
		short = append(short, list[i])
	}
	return append(short, moreProblems(list[0].Owner, "", more+listed-len(kept)))
}

// Truncate shortens a text to at most limit bytes. It cuts at the end of a word, if there is one in
// the second half, and appends the number of omitted bytes.
func Truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const reserved = len(" … (1234567890 bytes more)")
	end := limit - reserved
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	if space := strings.LastIndexAny(text[:end], " \n"); space > end/2 {
		end = space
	}
	return text[:end] + fmt.Sprintf(" … (%d bytes more)", len(text)-end)
}
