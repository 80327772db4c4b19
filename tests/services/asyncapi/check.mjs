// Reads an AsyncAPI document from standard input, and prints what is wrong with it, as JSON.
import { readFileSync } from 'node:fs';
import parser from '@asyncapi/parser';

const { document, diagnostics } = await new parser.Parser().parse(readFileSync(0, 'utf8'));
const errors = diagnostics.filter(one => one.severity === 0).map(one => `${one.path.join('/')}: ${one.message}`);
const messages = document ? document.allMessages().all().map(one => one.name()) : [];
console.log(JSON.stringify({ errors, messages }));
