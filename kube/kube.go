// Package kube accesses the Kubernetes API: the connection and its state, Events and conditions,
// and some objects.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/klog/v2"

	"hairpin/kubeapi"
)

const (
	// dialTimeout is how long a connection may take.
	dialTimeout = 10 * time.Second
	// lostTimeout is the time without an acknowledgment from the server's kernel after which a
	// connection is closed. Watches continue on another one. Without it, client-go takes 45 s to
	// detect that another machine has the address of an API server, because a watch sends nothing.
	lostTimeout = 10 * time.Second
)

// dialer opens connections with TCP keepalive. HTTP/2 pings would close the connections of every
// node when the server's process does not run for a while.
var dialer = net.Dialer{
	Timeout:         dialTimeout,
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: lostTimeout / 2, Interval: lostTimeout / 5, Count: 3},
	Control: func(_, _ string, c syscall.RawConn) error {
		// KeepAliveConfig does not apply while sent data is not acknowledged.
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
				int(lostTimeout.Milliseconds()))
		})
		return errors.Join(err, failed)
	},
}

// Connect connects to the API server named in a kubeconfig, or with the service account of the pod.
// reach observes its calls.
func Connect(kubeconfig string, reach *Reach) (*kubeapi.Client, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	config.UserAgent = "hairpin"
	config.QPS, config.Burst = 50, 100
	rereadToken(config)
	config.Wrap(reach.wrap)
	reach.connections = connrotation.NewDialer(dialer.DialContext)
	config.Dial = reach.connections.DialContext
	// Protobuf costs a fraction of the time and garbage of JSON.
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubeapi.New(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	return client, nil
}

// rereadToken makes a client read its token file again when the server has rejected the token. By
// itself, client-go reads it once a minute: after the key that signs tokens is replaced, the server
// would reject the calls of a process for up to 50 s.
func rereadToken(config *rest.Config) {
	if config.BearerTokenFile == "" {
		return
	}
	source := transport.NewCachedFileTokenSource(config.BearerTokenFile)
	config.BearerToken, config.BearerTokenFile = "", ""
	config.Wrap(transport.ResettableTokenSourceWrapTransport(source))
}

// WithLog returns a context with which client-go logs to log.
func WithLog(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(log.Handler()))
}

// PatchNode changes a Node's metadata by a merge patch. If metadata has a "uid" that is not the
// Node's, the Node does not change, and the error is a conflict.
func PatchNode(ctx context.Context, client *kubeapi.Client, name string, metadata map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err == nil {
		_, err = client.Nodes().Patch(ctx, name, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: "hairpin"})
	}
	if err != nil {
		return fmt.Errorf("patch metadata of node %s: %w", name, err)
	}
	return nil
}

// Servers returns addresses that no Service may have: that of the API server that this process
// uses, or none if it uses a host name. Those of the Service default/kubernetes are reserved in any
// case.
func Servers(client *kubeapi.Client) []netip.AddrPort {
	a, err := netip.ParseAddrPort(client.Core.Get().URL().Host)
	if err != nil {
		return nil
	}
	return []netip.AddrPort{a}
}
