// Package knft is the apply.Target of nft: Hairpin's tables in the kernel's nf_tables. It reads
// them with `nft list` and changes them in one transaction per Apply, which the kernel executes as
// a whole or not at all. If only elements of maps and sets differ, this process sends the
// transaction itself over netlink, because a run of nft takes milliseconds. Other transactions use
// `nft -f`.
//
// The kernel announces every transaction. The Target signals others' transactions on Hairpin's
// tables, but not its own. A caller that caches what it applied need not read thousands of elements
// after each Apply.
package knft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/apply/inside"
	"hairpin/apply/late"
	"hairpin/apply/notice"
	"hairpin/claims"
	"hairpin/datapath/nft"
)

var _ apply.Target[nft.State, nft.Delta] = (*Target)(nil)

// oldest is the oldest nft that is known to print and parse datapath/nft's syntax: that of Debian
// 12.
const oldest = "1.0.6"

// Config describes how to run nft.
type Config struct {
	NetNS   string       // path of a network namespace such as "/proc/123/ns/net"; empty = the caller's
	Command []string     // runs nft, in NetNS, to which elements are written without nft; empty = "nft"
	Log     *slog.Logger // of every transaction, at debug level; nil = the default
}

// Target is Hairpin's nft tables.
type Target struct {
	config Config
	notice *notice.Listener
	own    *generations

	probing sync.Mutex
	probed  bool
	// allowsMissing reports that netdev chains may refer to devices that do not exist (Linux 6.16).
	// An older kernel rejects such a chain, and removes it with its device.
	allowsMissing bool
	// copies reports that the kernel can duplicate packets to another machine (modules
	// nft_dup_ipv4, nft_dup_ipv6). Without it, the tables for that are left out, and moves of
	// egress addresses of other networks interrupt traffic.
	copies  bool
	devices *devices
	links   *notice.Listener // nil if allowsMissing

	ahead atomic.Pointer[readAhead] // for the next Read

	mu sync.Mutex // one Apply at a time
}

// New returns a Target and starts to listen. It fails without CAP_NET_ADMIN. It does not run nft,
// which may hang: Read does.
func New(c Config) (_ *Target, err error) {
	if len(c.Command) == 0 {
		c.Command = []string{"nft"}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	t := &Target{config: c, own: &generations{}}
	t.notice, err = notice.Listen(notice.Config{
		NetNS: c.NetNS, Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES},
		Relevant: t.own.relevant, Lost: t.own.forget,
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Version returns the version of nft, such as "1.0.6".
func (t *Target) Version(ctx context.Context) (string, error) {
	text, err := t.nft(ctx, "", "--version")
	if err != nil {
		return "", err
	}
	// The output is "nftables v1.0.6 (Lester Gooch #5)".
	_, number, _ := strings.Cut(text, " v")
	number, _, _ = strings.Cut(strings.TrimSpace(number), " ")
	return number, nil
}

// CheckVersion returns an error that names both versions if nft is too old.
func CheckVersion(version string) error { return apply.NeedVersion("nft", version, oldest) }

// probe tests, once, which features nft and the kernel have.
func (t *Target) probe(ctx context.Context) error {
	t.probing.Lock()
	defer t.probing.Unlock()
	if t.probed {
		return nil
	}
	refusal, err := t.Check(ctx,
		"table netdev hairpin-probe { chain c { type filter hook ingress device \"hairpin-none\" priority 0; }; }\n")
	if err != nil {
		return err
	}
	t.allowsMissing = refusal == nil
	t.config.Log.Debug("nft", "chains of missing devices", t.allowsMissing)
	t.copies = true
	for family, to := range map[nft.Family]string{nft.IP: "192.0.2.1", nft.IP6: "2001:db8::1"} {
		refusal, err := t.Check(ctx,
			fmt.Sprintf("table %s hairpin-probe { chain c { type filter hook prerouting priority 0; dup to %s "+
				"device \"lo\"; }; }\n", family, to))
		if err != nil {
			return err
		}
		if refusal != nil {
			t.config.Log.Warn("nft cannot duplicate packets (nft_dup): connections may fail while an egress address "+
				"outside the gateway bridge's network moves", "error", refusal)
			t.copies = false
		}
	}
	if !t.allowsMissing {
		if err := t.watchDevices(); err != nil {
			return err
		}
	}
	t.probed = true
	return nil
}

// AllChains returns the chains of all tables, also other programs', as nft's JSON.
func (t *Target) AllChains(ctx context.Context) (string, error) {
	return t.nft(ctx, "", "-j", "list", "chains")
}

// Check returns why nft or the kernel would reject commands. The error means that there is no
// result.
func (t *Target) Check(ctx context.Context, commands string) (refusal, err error) {
	_, err = t.nft(ctx, commands, "--check", "-f", "-")
	if ended := new(exec.ExitError); errors.As(err, &ended) && ended.Exited() {
		return err, nil
	}
	return nil, err
}

// Close stops listening. The tables stay.
func (t *Target) Close() {
	t.probing.Lock()
	defer t.probing.Unlock()
	if t.links != nil {
		t.links.Close()
	}
	t.notice.Close()
}

// Changed signals others' transactions on Hairpin's tables, lost messages, and changes of devices
// that a chain has or waits for.
func (t *Target) Changed() <-chan struct{} { return t.notice.Changed() }

// readAhead is a State and the generation at which it was read.
type readAhead struct {
	generation uint32
	tables     nft.State
}

// ReadAhead reads, and caches the result for the next Read: listing ten thousand elements takes as
// long as the rest of an agent's start.
func (t *Target) ReadAhead(ctx context.Context) (nft.State, error) {
	number, err := generation(t.config.NetNS)
	if err != nil {
		return nil, err
	}
	tables, err := t.read(ctx)
	if err == nil {
		t.ahead.Store(&readAhead{number, tables})
	}
	return tables, err
}

// Read returns Hairpin's tables as they are in the kernel.
func (t *Target) Read(ctx context.Context) (nft.State, error) {
	if ahead := t.ahead.Swap(nil); ahead != nil {
		if now, err := generation(t.config.NetNS); err == nil && now == ahead.generation {
			return ahead.tables, nil
		}
	}
	return t.read(ctx)
}

func (t *Target) read(ctx context.Context) (nft.State, error) {
	if err := t.probe(ctx); err != nil {
		return nil, err
	}
	out := nft.State{}
	for _, f := range nft.Families() {
		text, err := t.nft(ctx, "", "--stateless", "--numeric-protocol", "list", "table", string(f), claims.NFTTable)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := nft.ParseFound(text)
		if err != nil {
			return nil, fmt.Errorf("nft table %s %s: %w", f, claims.NFTTable, err)
		}
		if s[f] == nil {
			return nil, fmt.Errorf("nft table %s %s: not in the listing", f, claims.NFTTable)
		}
		out[f] = s[f]
	}
	if t.devices != nil && out[nft.Netdev] != nil {
		t.devices.addKnown(out[nft.Netdev].Chains)
	}
	return out, nil
}

// Apply makes all changes or none. On a kernel before 6.16 it leaves out chains whose device does
// not exist. The error is then an *apply.Waiting if all other changes were made.
func (t *Target) Apply(ctx context.Context, d nft.Delta) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.probe(ctx); err != nil {
		return err
	}
	if !t.copies {
		d = withoutCopies(d)
	}
	var missing []string
	if !t.allowsMissing {
		var err error
		if d, missing, err = t.withoutMissing(d); err != nil {
			return err
		}
	}
	if err := t.commit(ctx, d); err != nil {
		return err
	}
	if len(missing) > 0 {
		return &apply.Waiting{Devices: missing}
	}
	return nil
}

// withoutCopies leaves out the tables for duplicated packets.
func withoutCopies(d nft.Delta) nft.Delta {
	tables := maps.Clone(d.Tables)
	delete(tables, nft.IP)
	delete(tables, nft.IP6)
	return nft.Delta{Tables: tables}
}

// commit makes one transaction of the changes.
func (t *Target) commit(ctx context.Context, d nft.Delta) error {
	if d.Empty() {
		return nil
	}
	done, err := t.own.begin(t.config.NetNS)
	if err != nil {
		return err
	}
	var commands, bytes int
	elements := d.OnlyElements()
	if elements {
		b := newBatch(d)
		commands, bytes = len(b.requests), len(b.bytes)
		late.For(ctx, "the kernel's nf_tables")
		err = inside.Do(t.config.NetNS, b.send)
	} else {
		script := d.String()
		commands, bytes = strings.Count(script, "\n"), len(script)
		_, err = t.nft(ctx, script, "-f", "-")
	}
	t.config.Log.Debug("nft transaction", "commands", commands, "bytes", bytes, "netlink", elements, "error", err)
	if foreign := done(); foreign {
		t.notice.Notify()
	}
	return err
}

// grace is how long a killed program may keep its output open, and how long reading the output of
// an ended one may take on a busy machine.
const grace = time.Second

// nft runs the program. The error contains its messages; "no such table" is unix.ENOENT.
func (t *Target) nft(ctx context.Context, input string, args ...string) (string, error) {
	var out, said strings.Builder
	late.For(ctx, "nft")
	err := inside.Do(t.config.NetNS, func() error {
		cmd := exec.CommandContext(ctx, t.config.Command[0], slices.Concat(t.config.Command[1:], args)...)
		cmd.WaitDelay = grace
		cmd.Env = append(os.Environ(), "LC_ALL=C") // the messages are parsed
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &said
		return cmd.Run()
	})
	if err == nil {
		return out.String(), nil
	}
	what := "nft " + strings.Join(args, " ")
	if strings.Contains(said.String(), "No such file or directory") {
		err = errors.Join(err, unix.ENOENT)
	}
	if crash := new(exec.ExitError); errors.As(err, &crash) &&
		crash.Sys().(syscall.WaitStatus).Signal() == unix.SIGSEGV {
		err = fmt.Errorf("%w: an nft before 1.1.2 cannot read sets that a newer one wrote, also into others' "+
			"tables: use the newer one here", err)
	}
	if said.Len() > 0 {
		return "", fmt.Errorf("%s: %w: %s", what, err, firstLines(said.String()))
	}
	return "", fmt.Errorf("%s: %w", what, err)
}

// firstLines shortens nft's messages, which repeat a command of any length.
func firstLines(s string) string {
	const lines, length = 4, 200
	var out []string
	for l := range strings.Lines(s) {
		l = strings.TrimSpace(l)
		if len(l) > length {
			l = l[:length] + "…"
		}
		if l != "" && strings.Trim(l, "^ ") != "" {
			out = append(out, l)
		}
		if len(out) == lines {
			break
		}
	}
	return strings.Join(out, "; ")
}
