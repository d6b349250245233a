package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"hairpin/config"
	"hairpin/retry"
)

// identityCheck is the interval of checks of an identity's files.
const identityCheck = time.Second

// identity is the certificate that both sides of a probe present, and the authorities that they
// accept. The files are checked for each connection: certificates expire, and neither a renewal nor
// a file that comes late needs a restart.
type identity struct {
	files       config.EgressProbing
	own         *cached[*tls.Certificate]
	authorities *cached[*x509.CertPool]
}

// newIdentity returns the identity of a configuration; nil if probes are not encrypted.
func newIdentity(p config.EgressProbing) *identity {
	if p.Port == 0 || p.Cert == "" {
		return nil
	}
	i := &identity{files: p}
	i.own = &cached[*tls.Certificate]{files: []string{p.Cert, p.Key}, load: func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		return &c, err
	}}
	i.authorities = &cached[*x509.CertPool]{files: []string{p.CA}, load: func() (*x509.CertPool, error) {
		text, err := os.ReadFile(p.CA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", p.CA)
		}
		return pool, nil
	}}
	return i
}

// check returns why the identity cannot be used now.
func (i *identity) check() error {
	const what = "[ovnkubernetesfeature] egressip-node-healthcheck-"
	if i.files.CA == "" {
		return errors.New(what + "ca: is empty")
	}
	if _, err := i.own.get(); err != nil {
		return fmt.Errorf(what+"cert, "+what+"key: %w", err)
	}
	if _, err := i.authorities.get(); err != nil {
		return fmt.Errorf(what+"ca: %w", err)
	}
	return nil
}

// config returns the TLS configuration of both sides: each presents the certificate, and accepts
// what the authorities have signed. Names in certificates do not matter: nodes are probed at
// addresses that the network assigned.
func (i *identity) config() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS12,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.own.get() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.own.get() },
		ClientAuth:           tls.RequireAnyClientCert,
		InsecureSkipVerify:   true, // skips only the name; VerifyConnection verifies the chain
		VerifyConnection: func(s tls.ConnectionState) error {
			if i.files.CA == "" {
				return i.check()
			}
			roots, err := i.authorities.get()
			if err != nil {
				return err
			}
			intermediates := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				intermediates.AddCert(c)
			}
			options := x509.VerifyOptions{Roots: roots, Intermediates: intermediates,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
			_, err = s.PeerCertificates[0].Verify(options)
			return err
		},
	}
}

// Problem returns why this process can neither probe nor be probed, for example because a file of
// TLS is missing. Meanwhile no node counts as unreachable.
func (b *Prober) Problem() error {
	if e := b.problem.Load(); e != nil {
		return *e
	}
	return nil
}

// checkIdentity checks the files, updates the result of Problem, and logs a change.
func (b *Prober) checkIdentity() {
	if b.identity == nil {
		return
	}
	err, before := b.identity.check(), b.Problem()
	switch {
	case err == nil && before == nil, err != nil && before != nil && err.Error() == before.Error():
		return
	case err != nil:
		b.log.Warn("cannot probe nodes, nor be probed", "error", err)
	default:
		b.log.Info("can probe nodes again")
	}
	b.problem.Store(&err)
	b.Changed.Notify()
}

// watchIdentity checks the files regularly until ctx ends.
func (b *Prober) watchIdentity(ctx context.Context) {
	if b.identity == nil {
		return
	}
	retry.Every(ctx, identityCheck, b.checkIdentity)
}
