// Package probe generates and answers the traffic of the lab: servers that report the client's
// address, clients that send one request, and streams of connections that measure every gap.
//
// A server sends one line of JSON, a [Greeting], on each TCP or SCTP connection, and then echoes
// what it receives. A UDP datagram that starts with "get" is answered with a Greeting, "want 9000"
// with 9 000 bytes, "many 90" with 90 datagrams, "quiet" with nothing, any other is echoed.
package probe

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"context"

	"golang.org/x/sys/unix"
)

// Greeting is a server's description of a connection.
type Greeting struct {
	Name  string         `json:"name"`  // of the server
	Saw   netip.AddrPort `json:"saw"`   // the client's address as the server saw it
	Local netip.AddrPort `json:"local"` // the server's address that the client used
}

// Answer is the outcome of one request.
type Answer struct {
	Greeting
	Client netip.AddrPort `json:"client"` // the client's address as the client sees it
	Millis float64        `json:"ms"`     // from the first packet to the greeting
	Error  string         `json:"error,omitempty"`
}

// Main runs a probe command: "serve", "get", "stream" or "load" with flags. It returns the exit
// code; all but serve print JSON.
func Main(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: probe serve|get|stream|load [flags]; -h shows the flags of each")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	var result any
	var err error
	switch args[0] {
	case "serve":
		err = serveMain(ctx, args[1:])
	case "get":
		result, err = getMain(ctx, args[1:])
	case "stream":
		result, err = streamMain(ctx, args[1:])
	case "load":
		result, err = loadMain(ctx, args[1:])
	default:
		err = fmt.Errorf("unknown command %q", args[0])
	}
	if result != nil {
		_ = json.NewEncoder(os.Stdout).Encode(result) // an error cannot be reported
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		return 1
	}
	return 0
}

func serveMain(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	name := flags.String("name", "server", "what the server calls itself")
	port := flags.Uint("port", 8080, "port, on all addresses of both families")
	sink := flags.Bool("sink", false, "TCP only: read what is sent, and say nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	serve := func(ready func()) error { return Serve(ctx, *name, uint16(*port), ready) }
	if *sink {
		serve = func(ready func()) error { return Sink(ctx, uint16(*port), ready) }
	}
	return serve(func() {
		fmt.Println("ready")
		if null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0); err == nil { // the reader may have closed the pipe
			_ = unix.Dup2(int(null.Fd()), 1)
			_ = null.Close()
		}
	})
}

func getMain(ctx context.Context, args []string) (any, error) {
	flags := flag.NewFlagSet("get", flag.ExitOnError)
	r := Request{}
	target(flags, &r.Protocol, &r.To)
	flags.DurationVar(&r.Timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	from := flags.String("from", "", "source address")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *from != "" {
		a, err := netip.ParseAddr(*from)
		if err != nil {
			return nil, err
		}
		r.From = a
	}
	answer := Get(ctx, r)
	if answer.Error != "" {
		return answer, fmt.Errorf("no answer from %s %s", r.Protocol, r.To)
	}
	return answer, nil
}

func streamMain(ctx context.Context, args []string) (any, error) {
	flags := flag.NewFlagSet("stream", flag.ExitOnError)
	s := StreamConfig{}
	target(flags, &s.Protocol, &s.To)
	flags.IntVar(&s.Rate, "rate", 500, "new connections per second")
	flags.BoolVar(&s.Speak, "speak", false, "clients of new TCP connections send first")
	flags.IntVar(&s.Long, "long", 10, "connections that stay open")
	flags.DurationVar(&s.Every, "every", 10*time.Millisecond, "time between two messages on each long connection")
	flags.DurationVar(&s.Timeout, "timeout", 5*time.Second, "when a new connection, or a message, counts as failed")
	flags.DurationVar(&s.Duration, "for", 10*time.Second, "how long; an interrupt ends it earlier")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	report, err := Stream(ctx, s, func(answers int) { fmt.Fprintln(os.Stderr, answers) })
	if err != nil {
		return nil, err
	}
	return report, nil
}

func loadMain(ctx context.Context, args []string) (any, error) {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	c := LoadConfig{}
	flags.TextVar(&c.To, "to", netip.AddrPort{}, "address and port")
	flags.IntVar(&c.Workers, "workers", 8,
		"that open connections, each one after the other; 0 = one connection to a sink, that sends")
	flags.DurationVar(&c.Duration, "for", 5*time.Second, "how long")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	report, err := Load(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("load on %s: %w", c.To, err)
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return nil, fmt.Errorf("CPU of the load: %w", err)
	}
	report.CPU = time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
	return report, nil
}

// target declares the flags of the destination.
func target(flags *flag.FlagSet, protocol *string, to *netip.AddrPort) {
	flags.StringVar(protocol, "proto", "tcp", "tcp, udp or sctp")
	flags.TextVar(to, "to", netip.AddrPort{}, "address and port, such as 10.96.0.10:80 or [fd00:10:96::10]:80")
}

// readLine reads up to a newline, not beyond, so that what follows stays in the connection.
func readLine(r io.Reader) ([]byte, error) {
	var line []byte
	b := make([]byte, 1)
	for len(line) < 4096 {
		if _, err := io.ReadFull(r, b); err != nil {
			return line, err
		}
		if b[0] == '\n' {
			return line, nil
		}
		line = append(line, b[0])
	}
	return line, fmt.Errorf("no end of line in %d bytes", len(line))
}
