// Command pod is the program in the containers of the lab's cluster: "pause" holds a pod's
// namespaces, "serve" is a server that reports its client's address, "lookup" and "get" resolve
// names as any program in a pod does, "stream" is that of package probe.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab/probe"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: pod pause|serve|lookup|get|stream [flags]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command string, args []string) error {
	switch command {
	case "pause":
		pause(ctx)
		return nil
	case "serve":
		return serve(ctx, args)
	case "lookup":
		return lookup(ctx, args)
	case "get":
		return get(ctx, args)
	default:
		os.Exit(probe.Main(os.Args[1:]))
		return nil
	}
}

// pause waits for the end and reaps: it is the first process of a shared process namespace.
func pause(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for {
		select {
		case <-ctx.Done():
			return
		case <-children:
			for {
				if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}

// serve runs a server of package probe, and an HTTP server on another port for probes of a kubelet.
func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	host, _ := os.Hostname() // of a pod: its name
	name := flags.String("name", host, "what the server calls itself")
	port := flags.Uint("port", 8080, "TCP and UDP port of the probe")
	web := flags.Uint("http-port", 8081, "TCP port that answers every HTTP request with the name; 0: none")
	extend := flags.Uint("extend-port", 0, "TCP port of an HTTPS server that extends the Kubernetes API; 0: none")
	certificate := flags.String("certificate", "/tls", "folder with tls.crt and tls.key of that server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *web != 0 {
		server := &http.Server{ReadHeaderTimeout: 10 * time.Second,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, *name) })}
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", *web))
		if err != nil {
			return err
		}
		go func() { _ = server.Serve(listener) }() // until the program ends
	}
	if *extend != 0 {
		server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: extension(*name)}
		server.SetKeepAlivesEnabled(false) // each request uses its own connection
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", *extend))
		if err != nil {
			return err
		}
		go func() {
			fmt.Fprintln(os.Stderr, "pod:",
				server.ServeTLS(listener, filepath.Join(*certificate, "tls.crt"),
					filepath.Join(*certificate, "tls.key")))
			os.Exit(1)
		}()
	}
	return probe.Serve(ctx, *name, uint16(*port), func() { fmt.Println("serving as", *name) })
}

// lookup prints the addresses of a name, one a line.
func lookup(ctx context.Context, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, name := range args {
		all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		if err != nil {
			return err
		}
		for _, a := range all {
			fmt.Println(a.Unmap())
		}
	}
	return nil
}

// get sends one request to every address of a name (or to the given address) and prints a line of
// JSON for each answer.
func get(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("get", flag.ExitOnError)
	protocol := flags.String("proto", "tcp", "tcp or udp")
	to := flags.String("to", "", "name or address, and port, such as web.default.svc.cluster.local:80")
	timeout := flags.Duration("timeout", 5*time.Second, "how long to wait for each answer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	name, portText, err := net.SplitHostPort(*to)
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return err
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return err
	}
	for _, a := range all {
		answer := probe.Get(ctx, probe.Request{Protocol: *protocol, To: netip.AddrPortFrom(a.Unmap(), uint16(port)),
			Timeout: *timeout})
		if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
			return err
		}
		if answer.Error != "" {
			return fmt.Errorf("%s %s port %d: %s", *protocol, a, port, answer.Error)
		}
	}
	return nil
}
