// Reads an AsyncAPI document from standard input, and prints what is wrong with it, as JSON.
const { readFileSync } = require('node:fs');

globalThis.window = globalThis.self = globalThis; // the bundle, which needs no other package, is for browsers
const Parser = require(process.argv[2]);

new Parser().parse(readFileSync(0, 'utf8')).then(({ document, diagnostics }) => {
  const errors = diagnostics.filter(one => one.severity === 0).map(one => `${one.path.join('/')}: ${one.message}`);
  const messages = document ? document.allMessages().all().map(one => one.name()) : [];
  console.log(JSON.stringify({ errors, messages }));
});
