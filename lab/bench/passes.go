package bench

import (
	"context"
	"errors"
	"fmt"

	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// errMiscounted is the error of passes if the walk and the datapath differ.
var errMiscounted = errors.New("the walk says something else than what was counted")

// passes prints what the packets of each path cost in conntrack and in Open vSwitch, by the walk.
// It also prints whether the counts in the demo's lab match, under traffic of both families.
func passes(ctx context.Context, opt Options) error {
	d, err := demo.Start(ctx, demo.Options{
		Name: opt.Name, Objects: "examples/demo", Hairpin: opt.Hairpin, Mode: opt.Mode, Engine: opt.Engine,
		Slow: opt.Slow, DieWithCaller: true, Out: opt.Out,
	})
	if err != nil {
		return err
	}
	defer func() { _ = lab.Remove(opt.Name) }()
	four, err := d.Passes(ctx, false)
	if err != nil {
		return err
	}
	six, err := d.Passes(ctx, true)
	if err != nil {
		return err
	}
	words := func(c walk.Costs) (text string) {
		for _, x := range []packet.Cost{c.First, c.Later, c.Reply} {
			of := fmt.Sprint(x.Passes)
			if x.InHosts > 0 {
				of += fmt.Sprintf(" (%d)", x.InHosts)
			}
			text += fmt.Sprintf("  %7s %7d", of, x.Lookups)
		}
		return text
	}
	fmt.Fprintf(opt.Out,
		"\nConntrack passes (of these in hosts' kernels) and datapath lookups; Open vSwitch's datapath is %s\n%-48s "+
			" %15s  %15s  %15s\n%-48s", d.Lab().Node("node-a").Datapath(), "", "FIRST", "LATER", "REPLY", "")
	for range 3 {
		fmt.Fprintf(opt.Out, "  %7s %7s", "PASSES", "LOOKUPS")
	}
	fmt.Fprintln(opt.Out)
	for i, p := range four {
		fmt.Fprintf(opt.Out, "%-48s%s\n", p.Way, words(p.Walk))
		for _, x := range []demo.Passed{p, six[i]} {
			if x.Walk != x.Counted {
				fmt.Fprintf(opt.Out, "%-48s%s\n", "  counted:", words(x.Counted))
				err = errMiscounted
			}
		}
		if six[i].Walk != p.Walk {
			fmt.Fprintf(opt.Out, "%-48s%s\n", "  over IPv6", words(six[i].Walk))
		}
	}
	return err
}
