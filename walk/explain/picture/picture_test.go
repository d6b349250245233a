package picture_test

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/ui/demotest"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/picture"
	"hairpin/walk/explain/question"
)

// area is a rectangle of a picture: a box, a text, the circle of a number or a line of a path.
type area struct {
	name, class    string
	x0, y0, x1, y1 int
}

func (a area) overlaps(b area) bool { return a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1 }

func (a area) within(b area) bool {
	return a.x0 >= b.x0 && a.x1 <= b.x1 && a.y0 >= b.y0 && a.y1 <= b.y1
}

func (a area) String() string {
	return fmt.Sprintf("%s %q (%d,%d to %d,%d)", a.class, a.name, a.x0, a.y0, a.x1, a.y1)
}

// drawn is what a picture shows.
type drawn struct {
	paper                       area
	nodes, boxes, bars, texts   []area
	numbers, numberTexts, lines []area
}

// fontSizes of texts by class, with an allowance for bold ones.
var fontSizes = map[string]int{"title": 17, "faint": 12, "verdict": 15, "t-there": 13, "t-back": 13, "number": 11}

// read parses a picture.
func read(t *testing.T, svg string) *drawn {
	t.Helper()
	p := &drawn{}
	var open []xml.StartElement
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%q is no number: %v", text, err)
		}
		return n
	}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return p
		} else if err != nil {
			t.Fatalf("%v:\n%s", err, svg)
		}
		switch e := token.(type) {
		case xml.StartElement:
			a := map[string]string{}
			for _, x := range e.Attr {
				a[x.Name.Local] = x.Value
			}
			open = append(open, e.Copy())
			class := a["class"]
			switch {
			case e.Name.Local == "rect" && class == "paper":
				p.paper = area{class: class, x1: number(a["width"]), y1: number(a["height"])}
			case e.Name.Local == "rect":
				x, y := number(a["x"]), number(a["y"])
				list := map[string]*[]area{"node": &p.nodes, "box": &p.boxes, "bar": &p.bars}[class]
				*list = append(*list, area{"", class, x, y, x + number(a["width"]), y + number(a["height"])})
			case e.Name.Local == "circle" && number(a["r"]) > 5:
				x, y, r := number(a["cx"]), number(a["cy"]), number(a["r"])
				p.numbers = append(p.numbers, area{"", "circle", x - r, y - r, x + r, y + r})
			case e.Name.Local == "path" && (class == "there" || class == "back"):
				p.path(class, a["d"], number)
			}
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if n := len(open); n > 0 && open[n-1].Name.Local == "text" {
				a := map[string]string{}
				for _, x := range open[n-1].Attr {
					a[x.Name.Local] = x.Value
				}
				size, x, y := fontSizes[a["class"]], number(a["x"]), number(a["y"])
				if size == 0 {
					t.Fatalf("text %q has no known class", e)
				}
				width := picture.TextWidth(string(e), size)
				if text := (area{string(e), a["class"], x, y - size*3/4, x + width, y +
					size/4}); a["class"] != "number" {
					p.texts = append(p.texts, text)
				} else {
					text.x0, text.x1 = x-width/2, x+width/2
					p.numberTexts = append(p.numberTexts, text)
				}
			}
		}
	}
}

var cornerOf = regexp.MustCompile(`[ML](\d+) (\d+)`)

func (p *drawn) path(class, d string, number func(string) int) {
	list := cornerOf.FindAllStringSubmatch(d, -1)
	for i := 1; i < len(list); i++ {
		a := [2]int{number(list[i-1][1]), number(list[i-1][2])}
		b := [2]int{number(list[i][1]), number(list[i][2])}
		p.lines = append(p.lines, area{strconv.Itoa(i), class, min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]),
			max(a[1], b[1])})
	}
}

// faults returns what is drawn over something else, or cut.
func (p *drawn) faults() (list []string) {
	report := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	apart := func(groups ...[]area) {
		all := slices.Concat(groups...)
		for i, a := range all {
			for _, b := range all[:i] {
				if a.overlaps(b) {
					report("%s is over %s", a, b)
				}
			}
		}
	}
	apart(p.nodes, p.bars)
	apart(p.boxes, p.bars)
	apart(p.texts)
	for i, a := range p.numbers {
		for _, b := range p.numbers[:i] {
			if math.Hypot(float64(a.x0-b.x0), float64(a.y0-b.y0)) < float64(a.x1-a.x0) {
				report("%s is over %s", a, b)
			}
		}
		if k := slices.IndexFunc(p.texts, a.overlaps); k >= 0 {
			report("%s is over %s", a, p.texts[k])
		}
	}
	for _, b := range p.boxes {
		if i := slices.IndexFunc(p.nodes, b.overlaps); i >= 0 && !b.within(p.nodes[i]) {
			report("%s is partly outside %s", b, p.nodes[i])
		}
	}
	for _, x := range p.texts {
		if !x.within(p.paper) {
			report("%s is cut by the edge of the picture", x)
		}
		for _, b := range slices.Concat(p.boxes, p.nodes, p.bars) {
			if x.overlaps(b) && !x.within(b) {
				report("%s is partly outside %s", x, b)
			}
		}
		if strings.Contains(x.name, "…") {
			report("%s is shortened", x)
		}
		for _, l := range p.lines {
			if l.x1, l.y1 = l.x1+1, l.y1+1; x.overlaps(l) { // a line has a width
				report("a line of path %s crosses %s", l, x)
			}
		}
	}
	for i, a := range p.lines {
		for _, b := range p.lines[:i] {
			if a.x0 == a.x1 && b.x0 == b.x1 && a.x0 == b.x0 && a.y0 < b.y1 && b.y0 < a.y1 ||
				a.y0 == a.y1 && b.y0 == b.y1 && a.y0 == b.y0 && a.x0 < b.x1 && b.x0 < a.x1 {
				report("path %s is over %s", a, b)
			}
		}
	}
	for i, x := range p.numberTexts {
		if !slices.ContainsFunc(p.boxes, p.numbers[i].within) {
			report("number %s is in no box", x.name)
		}
	}
	for i := range p.numberTexts {
		if want := strconv.Itoa(i + 1); !slices.ContainsFunc(p.numberTexts,
			func(x area) bool { return x.name == want }) {
			report("number %s is missing", want)
		}
	}
	return list
}

// bridges returns the largest number of bridges in one node.
func (p *drawn) bridges() (most int) {
	for _, n := range p.nodes {
		count := 0
		for _, x := range p.texts {
			if strings.HasPrefix(x.name, "br") && x.within(n) {
				count++
			}
		}
		most = max(most, count)
	}
	return most
}

// upright checks that all lines of paths are horizontal or vertical.
func upright(t *testing.T, svg string) {
	t.Helper()
	corner := regexp.MustCompile(`[ML](\d+) (\d+)`)
	for _, d := range regexp.MustCompile(`class="(?:there|back)" d="([^"]*)"`).FindAllStringSubmatch(svg, -1) {
		list := corner.FindAllStringSubmatch(d[1], -1)
		for i := 1; i < len(list); i++ {
			if list[i][1] != list[i-1][1] && list[i][2] != list[i-1][2] {
				t.Errorf("a line is neither horizontal nor vertical: %s", d[1])
			}
		}
		if len(list) < 2 || corner.ReplaceAllString(d[1], "") != "" {
			t.Errorf("not a path within the picture: %q", d[1])
		}
	}
}

const demoDir = "../../../examples/demo"

// demo returns the planned cluster of examples/demo.
func demo(t *testing.T) (*walk.Walker, *cluster.Snapshot) {
	t.Helper()
	s := demotest.Read(t, demoDir, cluster.EngineOpenFlow)
	return demotest.Planned(t, s), s
}

// A picture is XML, shows every node on the path, and has a number and a line for each translation.
func TestPicture(t *testing.T) {
	w, s := demo(t)
	for _, c := range [][2]string{
		{"host/node-a", "svc/default/hostself"}, {"outside", "svc/default/podremote"},
		{"pod/default/pod-a2", "svc/default/hostother"},
		{"pod/default/pod-a1", "svc/default/podlocal"}, {"host/node-a", "10.96.1.99:80"},
		{"host/node-b", "192.0.2.7:443"},
	} {
		e := demotest.Answer(t, w, s, c[0], c[1])
		svg := picture.SVG(e)
		read(t, svg)
		upright(t, svg)
		for _, step := range slices.Concat(e.Trace.Forward, e.Trace.Reply) {
			if step.Node != "" && !strings.Contains(svg, ">"+step.Node+"<") {
				t.Errorf("%s: node %s is not shown", c, step.Node)
			}
			if strings.Contains(step.Did, "becomes") && !strings.Contains(svg, step.Node+": "+step.Stage+": ") {
				t.Errorf("%s: not in the legend: %s %s", c, step.Stage, step.Did)
			}
			if explain.PlaceOf(step.Stage).Kind == explain.Unknown {
				t.Errorf("%s: %q is no place", c, step.Stage)
			}
		}
		if !strings.Contains(svg, "prefers-color-scheme:dark") {
			t.Errorf("%s: no dark mode", c)
		}
	}
}

// TestPublishedPictures checks that nothing is drawn over something else, or cut, in the pictures
// of the documentation.
func TestPublishedPictures(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../../docs/*/*.svg", "../../../docs/*/*/*.svg"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 20 {
		t.Fatalf("%d pictures found", len(files))
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p := read(t, string(text))
		if len(p.boxes) == 0 || len(p.lines) == 0 {
			t.Errorf("%s: no boxes or no paths", name)
		}
		for _, f := range p.faults() {
			t.Errorf("%s: %s", name, f)
		}
	}
}

// TestPictures draws the paths from each kind of source to each Service, in each gateway mode, with
// each engine.
func TestPictures(t *testing.T) {
	for _, engine := range []string{cluster.EngineOpenFlow, cluster.EngineOVN} {
		for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached} {
			t.Run(engine+" "+mode, func(t *testing.T) {
				s := demotest.Read(t, demoDir, engine)
				for _, n := range s.Nodes {
					if n.Gateway.Mode = mode; mode == cluster.ModeDetached {
						n.Gateway.Uplink, n.Gateway.Device = "", "eth0"
					}
				}
				if most := pictures(t, s); most < 3 && engine == cluster.EngineOpenFlow && mode == cluster.ModeShared {
					t.Errorf("no node has three bridges, but %d", most)
				}
			})
		}
	}
}

// pictures checks the pictures of a cluster. It returns the largest number of bridges in one node.
func pictures(t *testing.T, s *cluster.Snapshot) (bridges int) {
	w := demotest.Planned(t, s)
	targets := []string{"outside/192.0.2.7", "10.96.1.99:80", "172.18.0.4:22"}
	for _, p := range s.Pods[:min(len(s.Pods), 4)] {
		targets = append(targets, "pod/"+p.Owner.Namespace+"/"+p.Owner.Name+":8080")
	}
	for _, f := range s.Frontends {
		word := "svc/" + f.Owner.Namespace + "/" + f.Owner.Name
		if f.PortName != "" {
			word += ":" + f.PortName
		}
		if !slices.Contains(targets, word) {
			targets = append(targets, word)
		}
	}
	drawn := 0
	for _, from := range []string{"pod/default/pod-a1", "pod/default/pod-c1", "host/node-a", "host/node-b", "outside"} {
		for _, to := range targets {
			for _, family := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
				e, err := explain.Ask(w, s, question.Question{From: from, To: to, Family: family})
				if err != nil { // not of this family
					continue
				}
				drawn++
				p := read(t, picture.SVG(e))
				bridges = max(bridges, p.bridges())
				for _, f := range p.faults() {
					t.Errorf("%s to %s, %v: %s", from, to, family, f)
				}
			}
		}
	}
	if drawn < 100 {
		t.Errorf("only %d pictures", drawn)
	}
	return bridges
}

// TestPictureFaults checks that the check of pictures finds what it is for.
func TestPictureFaults(t *testing.T) {
	w, s := demo(t)
	svg := picture.SVG(demotest.Answer(t, w, s, "outside", "svc/default/podremote"))
	if list := read(t, svg).faults(); len(list) > 0 {
		t.Fatalf("%s", strings.Join(list, "\n"))
	}
	paper := regexp.MustCompile(`class="paper" width="\d+"`)
	box := regexp.MustCompile(`(<rect class="box" x=")\d+(" y=")\d+`)
	circle := regexp.MustCompile(`cx="\d+" cy="\d+" r="9"`)
	path := regexp.MustCompile(`class="there" d="[^"]*"`)
	label := regexp.MustCompile(`(<text class="faint" x=")\d+(" y="(\d+)">ovn_cluster_router)`)
	at := label.FindStringSubmatch(svg)[3]
	for _, c := range []struct{ name, svg, want string }{
		{"boxes", box.ReplaceAllString(svg, "${1}300${2}300"), `is over box`},
		{"numbers", circle.ReplaceAllString(svg, `cx="400" cy="160" r="9"`), `is over circle`},
		{"label", label.ReplaceAllString(svg, "${1}480${2}"), `is partly outside box`},
		{"cut", paper.ReplaceAllString(svg, `class="paper" width="200"`), "is cut by"},
		{"line", path.ReplaceAllString(svg, `class="there" d="M0 `+at+`L900 `+at+`"`), "a line of path"},
	} {
		if list := read(t, c.svg).faults(); !slices.ContainsFunc(list,
			func(f string) bool { return strings.Contains(f, c.want) }) {
			t.Errorf("%s: not found: %q", c.name, list)
		}
	}
}
